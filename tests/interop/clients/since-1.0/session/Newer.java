package session;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.MultiTableRecord;
import org.apache.fluss.client.table.scanner.TypedScanRecord;
import org.apache.fluss.client.table.scanner.batch.BatchScanner;
import org.apache.fluss.client.table.scanner.log.MultiTableLogScanner;
import org.apache.fluss.client.table.scanner.log.TypedLogScanner;
import org.apache.fluss.client.table.writer.MultiTableWriteRecord;
import org.apache.fluss.client.table.writer.MultiTableWriter;
import org.apache.fluss.metadata.DatabaseChange;
import org.apache.fluss.metadata.DatabaseDescriptor;
import org.apache.fluss.metadata.DatabaseSummary;
import org.apache.fluss.metadata.PartitionInfo;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableChange;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.predicate.Predicate;
import org.apache.fluss.predicate.PredicateBuilder;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.types.DataTypes;

/** What clients can do since 1.0. */
public final class Newer {
    private final Log log;
    private final Admin admin;
    private final String database;

    private Newer(Log log, String database) {
        this.log = log;
        this.admin = log.admin;
        this.database = database;
    }

    public static void steps(Log log, String database) {
        Newer newer = new Newer(log, database);
        Step.run("since 1.0: databases summed up and altered", newer::databases);
        Step.run("since 1.0: bucket counts and health", newer::counts);
        Step.run("since 1.0: bucket counts changed under load", new Rescale(log, database)::underLoad);
        Step.run("since 1.0: a filter loses no row", newer::filtered);
        Step.run("since 1.0: batches filtered by statistics", newer::filteredByStatistics);
        Step.run("since 1.0: one limit over all buckets", newer::limitedOverAll);
        Step.run("since 1.0: rows as objects", newer::objects);
        Step.run("since 1.0: many tables through one writer and scanner", newer::manyTables);
    }

    private void databases() throws Exception {
        Map<String, Integer> counts = new HashMap<>();
        for (DatabaseSummary summary : admin.listDatabaseSummaries().get()) counts.put(summary.getDatabaseName(), summary.getTableCount());
        Step.same("tables by the summary", counts.get(database), admin.listTables(database).get().size());
        admin.alterDatabase(database, List.of(DatabaseChange.set("more", "é"), DatabaseChange.updateComment("another comment")), false).get();
        DatabaseDescriptor changed = admin.getDatabaseInfo(database).get().getDatabaseDescriptor();
        Step.same("comment", changed.getComment().orElse(null), "another comment");
        Step.same("properties", changed.getCustomProperties(), Map.of("who", "Jávä", "more", "é"));
        admin.alterDatabase(database, List.of(DatabaseChange.reset("more"), DatabaseChange.updateComment("a session")), false).get();
        Step.same("properties", admin.getDatabaseInfo(database).get().getDatabaseDescriptor().getCustomProperties(), Map.of("who", "Jávä"));
        Step.refused("a missing database", "DatabaseNotExistException", () -> admin.alterDatabase("nowhere", List.of(DatabaseChange.set("a", "b")), false).get());
    }

    private void counts() throws Exception {
        TablePath parts = TablePath.of(database, "parts");
        for (PartitionInfo partition : admin.listPartitionInfos(parts).get()) Step.same("buckets of a partition", partition.getBucketCount(), 2);
        Step.same("epoch of the bucket count", admin.getTableInfo(parts).get().getBucketCountEpoch(), 0L);
        admin.alterTable(parts, List.of(TableChange.modifyBucketCount(2)), false).get();
        Step.same("epoch after the same count again", admin.getTableInfo(parts).get().getBucketCountEpoch(), 0L);
        Step.refused("too many", "TooManyBucketsException", () -> admin.alterTable(parts, List.of(TableChange.modifyBucketCount(1_000_000)), false).get());
        Step.same("health", admin.getClusterHealth().get().getStatus().name(), "GREEN");
    }

    /** A filter may leave batches out, and never a row that passes it. */
    private void filtered() throws Exception {
        TablePath path = TablePath.of(database, "filtered");
        Schema schema = Schema.newBuilder().column("id", DataTypes.INT()).column("s", DataTypes.STRING()).build();
        admin.createTable(path, TableDescriptor.builder().schema(schema).distributedBy(1).build(), false).get();
        for (int batch = 0; batch < 5; batch++) log.append(path, rows(batch * 10));
        try (Table table = log.connection.getTable(path)) {
            Predicate predicate = new PredicateBuilder(schema.getRowType()).greaterOrEqual(0, 25);
            List<String> found = read(table, predicate, 25);
            Step.check("rows of 25 to 49", found.containsAll(texts(25, 50)));
        }
    }

    private void filteredByStatistics() throws Exception {
        TablePath path = TablePath.of(database, "statistics");
        Schema schema = Schema.newBuilder().column("id", DataTypes.INT()).column("s", DataTypes.STRING()).build();
        admin.createTable(path, TableDescriptor.builder().schema(schema).distributedBy(1).property("table.statistics.columns", "*").build(), false).get();
        for (int batch = 0; batch < 5; batch++) log.append(path, rows(batch * 10));
        Log.sameRows("all rows", log.all(path, 50).stream().map(Log.Found::text).toList(), texts(0, 50));
        try (Table table = log.connection.getTable(path)) {
            Predicate predicate = new PredicateBuilder(schema.getRowType()).greaterOrEqual(0, 25);
            Step.check("rows of 25 to 49", read(table, predicate, 25).containsAll(texts(25, 50)));
            Step.same("projected", Log.all(table.newScan().project(List.of("s")), schema.getRowType().project(List.of("s")), log.buckets(path), 50).size(), 50);
        }
    }

    /** Reads until the last row came. */
    private List<String> read(Table table, Predicate predicate, int least) throws Exception {
        List<String> found = new ArrayList<>();
        try (var scanner = table.newScan().filter(predicate).createLogScanner()) {
            scanner.subscribeFromBeginning(0);
            long until = System.nanoTime() + 30_000_000_000L;
            while (System.nanoTime() < until && (found.size() < least || !found.get(found.size() - 1).startsWith("{\"id\":49,"))) {
                for (var record : scanner.poll(Duration.ofMillis(500))) found.add(Text.row(table.getTableInfo().getRowType(), record.getRow()));
            }
        }
        return found;
    }

    private static List<GenericRow> rows(int from) {
        List<GenericRow> rows = new ArrayList<>();
        for (int i = from; i < from + 10; i++) rows.add(GenericRow.of(i, BinaryString.fromString("s" + i)));
        return rows;
    }

    private static List<String> texts(int from, int to) {
        List<String> texts = new ArrayList<>();
        for (int i = from; i < to; i++) texts.add("{\"id\":" + i + ",\"s\":\"s" + i + "\"}");
        return texts;
    }

    private void limitedOverAll() throws Exception {
        for (String name : new String[] {"types_arrow", "parts"}) {
            TablePath path = TablePath.of(database, name);
            try (Table table = log.connection.getTable(path); BatchScanner scanner = table.newScan().limit(7).createBatchScanner()) {
                Step.same("rows of " + name, Log.drained(scanner, table.getTableInfo().getRowType()).size(), 7);
            }
        }
    }

    /** A row as an object. */
    public static final class Thing {
        public Integer id;
        public String s;

        public Thing() {}
    }

    private void objects() throws Exception {
        TablePath path = TablePath.of(database, "filtered");
        try (Table table = log.connection.getTable(path); TypedLogScanner<Thing> scanner = table.newScan().createTypedLogScanner(Thing.class)) {
            scanner.subscribeFromBeginning(0);
            List<String> found = new ArrayList<>();
            long until = System.nanoTime() + 30_000_000_000L;
            while (found.size() < 50 && System.nanoTime() < until) {
                for (TypedScanRecord<Thing> record : scanner.poll(Duration.ofMillis(500))) found.add("{\"id\":" + record.getValue().id + ",\"s\":\"" + record.getValue().s + "\"}");
            }
            Log.sameRows("objects", found, texts(0, 50));
        }
    }

    private void manyTables() throws Exception {
        List<TablePath> paths = new ArrayList<>();
        Schema schema = Schema.newBuilder().column("id", DataTypes.INT()).column("s", DataTypes.STRING()).build();
        for (int i = 0; i < 3; i++) {
            TablePath path = TablePath.of(database, "many" + i);
            admin.createTable(path, TableDescriptor.builder().schema(schema).distributedBy(1).build(), false).get();
            paths.add(path);
        }
        try (MultiTableWriter writer = log.connection.getMultiTable().newMultiTableWrite().createWriter()) {
            List<CompletableFuture<?>> results = new ArrayList<>();
            for (int i = 0; i < 50; i++) {
                for (TablePath path : paths) results.add(writer.write(MultiTableWriteRecord.forAppend(path, GenericRow.of(i, BinaryString.fromString("s" + i)), 1)));
            }
            writer.flush();
            for (CompletableFuture<?> result : results) result.get();
        }
        Map<TablePath, List<String>> found = new HashMap<>();
        int count = 0;
        try (MultiTableLogScanner scanner = log.connection.getMultiTable().newMultiTableScan().createLogScanner()) {
            for (TablePath path : paths) scanner.subscribeFromBeginning(path, 0);
            long until = System.nanoTime() + 30_000_000_000L;
            while (count < 150 && System.nanoTime() < until) {
                for (MultiTableRecord record : scanner.poll(Duration.ofMillis(500))) {
                    found.computeIfAbsent(record.getTablePath(), path -> new ArrayList<>()).add(Text.row(record.getSchema().getRowType(), record.getRow()));
                    count++;
                }
            }
        }
        for (TablePath path : paths) Log.sameRows("rows of " + path, found.getOrDefault(path, List.of()), texts(0, 50));
    }
}
