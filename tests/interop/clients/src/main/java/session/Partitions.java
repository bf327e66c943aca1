package session;

import java.time.LocalDate;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

import org.apache.fluss.client.admin.OffsetSpec;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.metadata.PartitionInfo;
import org.apache.fluss.metadata.PartitionSpec;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.TimestampNtz;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.DataTypes;

/** Partitions: made, listed, dropped, made by writers and by the server. */
final class Partitions {
    private final Log log;
    private final String database;

    Partitions(Log log, String database) {
        this.log = log;
        this.database = database;
    }

    private static PartitionSpec spec(String... pairs) {
        Map<String, String> spec = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) spec.put(pairs[i], pairs[i + 1]);
        return new PartitionSpec(spec);
    }

    private Set<String> names(TablePath path) throws Exception {
        Set<String> names = new TreeSet<>();
        for (PartitionInfo partition : log.admin.listPartitionInfos(path).get()) names.add(partition.getPartitionName());
        return names;
    }

    private TablePath create(String name, Schema schema, int buckets, String... keys) throws Exception {
        TablePath path = TablePath.of(database, name);
        log.admin.createTable(path, TableDescriptor.builder().schema(schema).distributedBy(buckets).partitionedBy(keys)
                .property("table.datalake.enabled", "true").property("table.datalake.freshness", "1s").build(), false).get();
        return path;
    }

    /** Two keys; partitions by hand and by the writer; each read alone. */
    void byHandAndByWriters() throws Exception {
        Schema schema = Schema.newBuilder().column("p", DataTypes.STRING()).column("v", DataTypes.BIGINT()).column("q", DataTypes.STRING()).build();
        TablePath path = create("parts", schema, 2, "p", "q");
        Step.same("no partitions", names(path), Set.of());
        for (String p : new String[] {"a", "b"}) log.admin.createPartition(path, spec("p", p, "q", "x"), false).get();
        log.admin.createPartition(path, spec("p", "a", "q", "x"), true).get();
        Step.refused("the same partition", "PartitionAlreadyExistsException", () -> log.admin.createPartition(path, spec("p", "a", "q", "x"), false).get());
        Step.refused("a partition without a key", "InvalidPartitionException", () -> log.admin.createPartition(path, spec("p", "a"), false).get());
        Step.refused("a partition of another key", "InvalidPartitionException", () -> log.admin.createPartition(path, spec("p", "a", "z", "x"), false).get());
        Step.refused("a value that is no name", "InvalidPartitionException", () -> log.admin.createPartition(path, spec("p", "a/b", "q", "x"), false).get());
        List<GenericRow> rows = new ArrayList<>();
        for (int i = 0; i < 60; i++) rows.add(GenericRow.of(text("abc".substring(i % 3, i % 3 + 1)), (long) i, text(i % 2 == 0 ? "x" : "y")));
        log.append(path, rows);
        Step.same("partitions, those of the writer among them", names(path), Set.of("a$x", "a$y", "b$x", "b$y", "c$x", "c$y"));
        Set<String> ofA = new TreeSet<>();
        for (PartitionInfo partition : log.admin.listPartitionInfos(path, spec("p", "a")).get()) ofA.add(partition.getPartitionName());
        Step.same("partitions of a", ofA, Set.of("a$x", "a$y"));
        try (Table table = log.connection.getTable(path)) {
            for (PartitionInfo partition : log.admin.listPartitionInfos(path).get()) {
                Map<String, String> values = partition.getPartitionSpec().getSpecMap();
                Step.same("the name of " + values, partition.getPartitionName(), values.get("p") + "$" + values.get("q"));
                List<String> expected = new ArrayList<>();
                for (GenericRow row : rows) {
                    if (row.getString(0).toString().equals(values.get("p")) && row.getString(2).toString().equals(values.get("q"))) expected.add(Text.row(schema.getRowType(), row));
                }
                Map<Integer, Long> ends = log.admin.listOffsets(path, partition.getPartitionName(), List.of(0, 1), new OffsetSpec.LatestSpec()).all().get();
                Step.same("the ends of " + values, ends.get(0) + ends.get(1), (long) expected.size());
                List<TableBucket> buckets = log.buckets(path).stream().filter(bucket -> bucket.getPartitionId() == partition.getPartitionId()).toList();
                Log.sameRows("rows of " + values, Log.sorted(Log.all(table.newScan(), schema.getRowType(), buckets, expected.size())), Log.sortedTexts(expected));
                for (TableBucket bucket : buckets) {
                    int end = ends.get(bucket.getBucket()).intValue();
                    Step.same("a limit scan of " + values, Log.limited(table.newScan().limit(100), schema.getRowType(), bucket).size(), end);
                }
            }
        }
        log.admin.dropPartition(path, spec("p", "a", "q", "x"), false).get();
        log.admin.dropPartition(path, spec("p", "a", "q", "x"), true).get();
        Step.refused("a partition that is gone", "PartitionNotExistException", () -> log.admin.dropPartition(path, spec("p", "a", "q", "x"), false).get());
        Step.refused("its offsets", "PartitionNotExistException", () -> log.admin.listOffsets(path, "a$x", List.of(0), new OffsetSpec.LatestSpec()).all().get());
        Step.same("partitions", names(path), Set.of("a$y", "b$x", "b$y", "c$x", "c$y"));
        // By another connection: a writer that knows the partition by its old id tries that for ever.
        try (Log another = new Log(log.bootstrap)) {
            another.append(path, List.of(GenericRow.of(text("a"), 100L, text("x"))));
        }
        Step.same("the dropped one is made again", names(path).contains("a$x"), true);
        Step.same("and is empty but for the new row", log.all(path, 60 - 10 + 1).stream().filter(row -> row.text().contains(":\"a\"") && row.text().contains(":\"x\"")).count(), 1L);
    }

    /** A partition column of each type, its partitions named by the writer. */
    void ofEveryType() throws Exception {
        Map<String, Object[]> columns = new TreeMap<>();
        Map<String, DataType> types = new TreeMap<>();
        put(columns, types, "bo", DataTypes.BOOLEAN(), true, false);
        put(columns, types, "i8", DataTypes.TINYINT(), (byte) -128, (byte) 127);
        put(columns, types, "i16", DataTypes.SMALLINT(), Short.MIN_VALUE, (short) 0);
        put(columns, types, "i32", DataTypes.INT(), Integer.MIN_VALUE, 7);
        put(columns, types, "i64", DataTypes.BIGINT(), Long.MIN_VALUE, 7L);
        put(columns, types, "f32", DataTypes.FLOAT(), 1.5f, -0.1f);
        put(columns, types, "f64", DataTypes.DOUBLE(), 1.5, -0.1);
        put(columns, types, "ch", DataTypes.CHAR(2), text("ab"), text("zz"));
        put(columns, types, "by", DataTypes.BYTES(), new byte[] {1, -1}, new byte[] {0});
        put(columns, types, "bi", DataTypes.BINARY(2), new byte[] {1, -1}, new byte[] {0, 0});
        put(columns, types, "da", DataTypes.DATE(), 0, 20_000);
        put(columns, types, "ti", DataTypes.TIME(3), 0, 45_296_789);
        put(columns, types, "ts", DataTypes.TIMESTAMP(6), TimestampNtz.fromMicros(0), TimestampNtz.fromMicros(1_767_323_045_678_901L));
        for (String name : columns.keySet()) {
            Schema schema = Schema.newBuilder().column("v", DataTypes.INT()).column("p", types.get(name)).build();
            TablePath path = create("part_" + name, schema, 1, "p");
            List<GenericRow> rows = new ArrayList<>();
            for (int i = 0; i < 10; i++) rows.add(GenericRow.of(i, columns.get(name)[i % 2]));
            log.append(path, rows);
            Step.same("partitions of " + name, names(path).size(), 2);
            List<String> expected = rows.stream().map(row -> Text.row(schema.getRowType(), row)).toList();
            Log.sameRows("rows of " + name, Log.sorted(log.all(path, 10)), Log.sortedTexts(expected));
            // The name that the client gave is the one that the server gives back: listed, dropped, made by hand.
            PartitionInfo first = log.admin.listPartitionInfos(path).get().get(0);
            log.admin.dropPartition(path, first.getPartitionSpec(), false).get();
            Step.same("partitions of " + name + " after a drop", names(path).size(), 1);
            log.admin.createPartition(path, first.getPartitionSpec(), false).get();
            Step.same("partitions of " + name, names(path).size(), 2);
        }
    }

    private static void put(Map<String, Object[]> columns, Map<String, DataType> types, String name, DataType type, Object... values) {
        columns.put(name, values);
        types.put(name, type);
    }

    /** Partitions of today and the next days are there as soon as the table is, and take rows. */
    void automatic() throws Exception {
        Schema schema = Schema.newBuilder().column("day", DataTypes.STRING()).column("v", DataTypes.INT()).build();
        TablePath path = TablePath.of(database, "auto");
        LocalDate before = LocalDate.now(ZoneOffset.UTC);
        log.admin.createTable(path, TableDescriptor.builder().schema(schema).distributedBy(1).partitionedBy("day")
                .property("table.auto-partition.enabled", "true").property("table.auto-partition.time-unit", "day").property("table.auto-partition.time-zone", "UTC")
                .property("table.auto-partition.num-precreate", "2").property("table.auto-partition.num-retention", "7").build(), false).get();
        Step.check("auto-partitioned", log.admin.getTableInfo(path).get().isAutoPartitioned());
        long until = System.nanoTime() + 30_000_000_000L;
        while (names(path).size() < 2 && System.nanoTime() < until) Thread.sleep(50);
        DateTimeFormatter format = DateTimeFormatter.ofPattern("yyyyMMdd");
        LocalDate today = LocalDate.now(ZoneOffset.UTC);
        Set<String> now = Set.of(today.format(format), today.plusDays(1).format(format)), earlier = Set.of(before.format(format), before.plusDays(1).format(format));
        Step.check("partitions " + names(path) + " instead of " + now, names(path).containsAll(now) || names(path).containsAll(earlier));
        String day = before.format(format);
        log.append(path, List.of(GenericRow.of(text(day), 1), GenericRow.of(text(day), 2)));
        Step.same("rows", log.all(path, 2).size(), 2);
        Step.same("subscribed to one of them", subscribed(path, day), 2);
    }

    private int subscribed(TablePath path, String name) throws Exception {
        PartitionInfo partition = log.admin.listPartitionInfos(path).get().stream().filter(info -> info.getPartitionName().equals(name)).findFirst().orElseThrow();
        try (Table table = log.connection.getTable(path); LogScanner scanner = table.newScan().createLogScanner()) {
            scanner.subscribeFromBeginning(partition.getPartitionId(), 0);
            return Log.read(scanner, table.getTableInfo().getRowType(), 2).size();
        }
    }

    private static BinaryString text(String text) {
        return BinaryString.fromString(text);
    }
}
