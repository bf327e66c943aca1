package session;

import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;

import org.apache.fluss.client.lookup.Lookuper;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.ScanRecord;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.client.table.scanner.log.ScanRecords;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.metadata.PartitionSpec;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.types.DataTypes;
import org.apache.fluss.types.RowType;

/** Tables with a primary key: what is put is looked up, scanned, and told in the changelog. */
final class Keys {
    private static final int COUNT = 300;

    private final Log log;
    private final String database;

    Keys(Log log, String database) {
        this.log = log;
        this.database = database;
    }

    private static BinaryString text(String text) {
        return text == null ? null : BinaryString.fromString(text);
    }

    private TablePath path(String name) {
        return TablePath.of(database, name);
    }

    private static Schema.Builder columns() {
        return Schema.newBuilder().column("id", DataTypes.INT()).column("name", DataTypes.STRING()).column("n", DataTypes.BIGINT());
    }

    private void create(String name, Schema schema, int buckets, String[] bucketKeys, String[] partitionKeys, String... properties) throws Exception {
        TableDescriptor.Builder table = TableDescriptor.builder().schema(schema).distributedBy(buckets, bucketKeys)
                .property("table.datalake.enabled", "true").property("table.datalake.freshness", "1s");
        if (partitionKeys.length > 0) table.partitionedBy(partitionKeys);
        for (int i = 0; i < properties.length; i += 2) table.property(properties[i], properties[i + 1]);
        log.admin.createTable(path(name), table.build(), false).get();
    }

    /** Puts, where the row has a name or number, and deletes where it has neither; in this order. */
    private void write(Table table, List<GenericRow> puts, List<GenericRow> deletes) throws Exception {
        UpsertWriter writer = table.newUpsert().createWriter();
        List<CompletableFuture<?>> results = new ArrayList<>();
        for (GenericRow row : puts) results.add(writer.upsert(row));
        for (GenericRow row : deletes) results.add(writer.delete(row));
        writer.flush();
        for (CompletableFuture<?> result : results) result.get();
    }

    private static List<String> lookup(Table table, InternalRow key) throws Exception {
        RowType type = table.getTableInfo().getRowType();
        List<String> rows = new ArrayList<>();
        for (InternalRow row : table.newLookup().createLookuper().lookup(key).get().getRowList()) rows.add(Text.row(type, row));
        return rows;
    }

    private static List<String> rows(Table table, GenericRow... rows) {
        List<String> texts = new ArrayList<>();
        for (GenericRow row : rows) texts.add(Text.row(table.getTableInfo().getRowType(), row));
        return texts;
    }

    /** The rows of all buckets by a limited scan that takes them all. */
    private List<String> scanned(Table table, TablePath path) throws Exception {
        List<String> found = new ArrayList<>();
        for (TableBucket bucket : log.buckets(path)) found.addAll(Log.limited(table.newScan().limit(10_000), table.getTableInfo().getRowType(), bucket));
        return Log.sortedTexts(found);
    }

    private static GenericRow row(int id, int round) {
        return GenericRow.of(id, text("round " + round + " of " + id), (long) id * round);
    }

    void putsAndDeletes() throws Exception {
        create("keys", columns().primaryKey("id").build(), 3, new String[0], new String[0]);
        try (Table table = log.connection.getTable(path("keys"))) {
            Map<Integer, GenericRow> model = new TreeMap<>();
            for (int round = 1; round <= 3; round++) {
                List<GenericRow> puts = new ArrayList<>(), deletes = new ArrayList<>();
                for (int id = 0; id < COUNT; id += round) puts.add(row(id, round));
                for (int id = 5; id < COUNT; id += 7 * round) deletes.add(row(id, 0));
                write(table, puts, deletes);
                for (GenericRow row : puts) model.put(row.getInt(0), row);
                for (GenericRow row : deletes) model.remove(row.getInt(0));
                check(table, model);
            }
        }
    }

    private void check(Table table, Map<Integer, GenericRow> model) throws Exception {
        Lookuper lookuper = table.newLookup().createLookuper();
        RowType type = table.getTableInfo().getRowType();
        Map<Integer, CompletableFuture<org.apache.fluss.client.lookup.LookupResult>> found = new LinkedHashMap<>();
        for (int id = -1; id <= COUNT; id++) found.put(id, lookuper.lookup(GenericRow.of(id)));
        for (Map.Entry<Integer, CompletableFuture<org.apache.fluss.client.lookup.LookupResult>> entry : found.entrySet()) {
            InternalRow row = entry.getValue().get().getSingletonRow();
            GenericRow expected = model.get(entry.getKey());
            Step.same("key " + entry.getKey(), row == null ? null : Text.row(type, row), expected == null ? null : Text.row(type, expected));
        }
        List<String> all = new ArrayList<>();
        for (GenericRow row : model.values()) all.add(Text.row(type, row));
        Log.sameRows("scanned", scanned(table, path("keys")), Log.sortedTexts(all));
    }

    /** The changelog makes the table, and each of its changes stands on the one before. */
    void changelog() throws Exception {
        try (Table table = log.connection.getTable(path("keys")); LogScanner scanner = table.newScan().createLogScanner()) {
            List<TableBucket> buckets = log.buckets(path("keys"));
            for (TableBucket bucket : buckets) Log.subscribe(scanner, bucket, LogScanner.EARLIEST_OFFSET);
            long count = 0;
            for (long end : log.offsets(path("keys"), new org.apache.fluss.client.admin.OffsetSpec.LatestSpec()).values()) count += end;
            RowType type = table.getTableInfo().getRowType();
            Map<Integer, String> made = new TreeMap<>();
            long until = System.nanoTime() + Duration.ofSeconds(60).toNanos();
            while (count > 0) {
                if (System.nanoTime() > until) throw new Step.Difference(count + " changes are missing");
                ScanRecords records = scanner.poll(Duration.ofMillis(500));
                for (ScanRecord record : records) {
                    count--;
                    int id = record.getRow().getInt(0);
                    String row = Text.row(type, record.getRow());
                    switch (record.getChangeType()) {
                        case INSERT -> Step.same("before an insert of " + id, made.put(id, row), null);
                        case UPDATE_BEFORE -> Step.same("before an update of " + id, made.get(id), row);
                        case UPDATE_AFTER -> Step.check("an update of nothing: " + id, made.put(id, row) != null);
                        case DELETE -> Step.same("before a delete of " + id, made.remove(id), row);
                        default -> throw new Step.Difference("a change of kind " + record.getChangeType());
                    }
                }
            }
            Log.sameRows("made by the changelog", Log.sortedTexts(made.values()), scanned(table, path("keys")));
        }
    }

    void partialUpdates() throws Exception {
        create("partial", columns().primaryKey("id").build(), 1, new String[0], new String[0]);
        try (Table table = log.connection.getTable(path("partial"))) {
            write(table, List.of(GenericRow.of(1, text("n1"), 20L)), List.of());
            UpsertWriter number = table.newUpsert().partialUpdate("id", "n").createWriter();
            number.upsert(GenericRow.of(1, null, 21L)).get();
            Step.same("a number alone", lookup(table, GenericRow.of(1)), rows(table, GenericRow.of(1, text("n1"), 21L)));
            UpsertWriter name = table.newUpsert().partialUpdate("id", "name").createWriter();
            name.upsert(GenericRow.of(1, null, null)).get();
            Step.same("a name taken away", lookup(table, GenericRow.of(1)), rows(table, GenericRow.of(1, null, 21L)));
            name.upsert(GenericRow.of(2, text("new"), null)).get();
            Step.same("a new key", lookup(table, GenericRow.of(2)), rows(table, GenericRow.of(2, text("new"), null)));
        }
    }

    /** Long texts stand apart from the fixed part of a key in the lake's format: a prefix is none of bytes there. */
    void prefixes() throws Exception {
        Schema schema = Schema.newBuilder().column("k1", DataTypes.STRING()).column("k2", DataTypes.BIGINT()).column("v", DataTypes.STRING())
                .primaryKey("k1", "k2").build();
        create("pairs", schema, 3, new String[] {"k1"}, new String[0]);
        try (Table table = log.connection.getTable(path("pairs"))) {
            List<GenericRow> all = new ArrayList<>();
            for (String k1 : new String[] {"1234567", "12345678", ""}) {
                for (long k2 = 1; k2 <= 2; k2++) all.add(GenericRow.of(text(k1), k2, text(k1 + "/" + k2)));
            }
            write(table, all, List.of());
            Lookuper lookuper = table.newLookup().lookupBy("k1").createLookuper();
            RowType type = table.getTableInfo().getRowType();
            for (int at = 0; at < all.size(); at += 2) {
                List<String> found = new ArrayList<>();
                for (InternalRow row : lookuper.lookup(GenericRow.of(all.get(at).getField(0))).get().getRowList()) found.add(Text.row(type, row));
                Step.same("rows of " + all.get(at).getField(0), found, rows(table, all.get(at), all.get(at + 1)));
            }
            Step.same("rows of another", lookuper.lookup(GenericRow.of(text("123456"))).get().getRowList().size(), 0);
        }
    }

    void partitions() throws Exception {
        Schema schema = Schema.newBuilder().column("dt", DataTypes.STRING()).column("id", DataTypes.INT()).column("v", DataTypes.STRING())
                .primaryKey("dt", "id").build();
        create("keyed_parts", schema, 2, new String[0], new String[] {"dt"});
        for (String dt : new String[] {"20240301", "20240302"}) {
            log.admin.createPartition(path("keyed_parts"), new PartitionSpec(Map.of("dt", dt)), false).get();
        }
        try (Table table = log.connection.getTable(path("keyed_parts"))) {
            List<GenericRow> puts = new ArrayList<>(), deletes = new ArrayList<>();
            for (int id = 0; id < 20; id++) {
                puts.add(GenericRow.of(text("20240301"), id, text("a")));
                puts.add(GenericRow.of(text("20240302"), id, text("b")));
                if (id % 5 == 0) deletes.add(GenericRow.of(text("20240301"), id, text("")));
            }
            write(table, puts, deletes);
            Step.same("a deleted one", lookup(table, GenericRow.of(text("20240301"), 5)), List.of());
            Step.same("its like elsewhere", lookup(table, GenericRow.of(text("20240302"), 5)), rows(table, GenericRow.of(text("20240302"), 5, text("b"))));
            Step.same("rows", scanned(table, path("keyed_parts")).size(), 36);
        }
    }

    void mergeEngines() throws Exception {
        create("first", columns().primaryKey("id").build(), 1, new String[0], new String[0], "table.merge-engine", "first_row");
        create("versions", columns().primaryKey("id").build(), 1, new String[0], new String[0], "table.merge-engine", "versioned", "table.merge-engine.versioned.ver-column", "n");
        List<GenericRow> rows = List.of(GenericRow.of(1, text("a"), 5L), GenericRow.of(1, text("b"), 4L), GenericRow.of(1, text("c"), 6L));
        for (Map.Entry<String, Integer> entry : Map.of("first", 0, "versions", 2).entrySet()) {
            try (Table table = log.connection.getTable(path(entry.getKey()))) {
                for (GenericRow row : rows) write(table, List.of(row), List.of());
                Step.same(entry.getKey(), lookup(table, GenericRow.of(1)), rows(table, rows.get(entry.getValue())));
            }
        }
        create("undying", columns().primaryKey("id").build(), 1, new String[0], new String[0], "table.delete.behavior", "disable");
        try (Table table = log.connection.getTable(path("undying"))) {
            Step.refused("a delete", "DeletionDisabledException", () -> write(table, List.of(), List.of(row(1, 1))));
        }
    }

    /** What another version wrote is read, and written to. */
    void othersTables() throws Exception {
        try (Table table = log.connection.getTable(path("keys"))) {
            List<String> before = scanned(table, path("keys"));
            write(table, List.of(row(COUNT + 1, 9)), List.of());
            Step.same("a new key", lookup(table, GenericRow.of(COUNT + 1)), rows(table, row(COUNT + 1, 9)));
            write(table, List.of(), List.of(row(COUNT + 1, 9)));
            Log.sameRows("the others", scanned(table, path("keys")), before);
        }
        changelog();
    }
}
