package session;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.fluss.client.admin.OffsetSpec;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.metadata.LogFormat;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.types.RowType;

/** Rows of every type in one log format: written, and read in every way that there is. */
final class Types {
    private final Log log;
    private final LogFormat format;
    final TablePath path;

    Types(Log log, String database, LogFormat format) {
        this.log = log;
        this.format = format;
        this.path = TablePath.of(database, "types_" + format.name().toLowerCase());
    }

    static List<GenericRow> rows(LogFormat format, int from, int to) {
        List<GenericRow> rows = new ArrayList<>();
        for (int number = from; number < to; number++) rows.add(Rows.row(format, number));
        return rows;
    }

    /** In two parts, so that times and offsets lie between them. */
    void write() throws Exception {
        log.append(path, rows(format, 0, Rows.COUNT / 2));
        log.append(path, rows(format, Rows.COUNT / 2, Rows.COUNT));
    }

    void readFromTheBeginning() throws Exception {
        Log.sameRows(format.name(), Log.sorted(log.all(path, Rows.COUNT)), Log.sortedTexts(Rows.texts(format, 0, Rows.COUNT)));
    }

    void readFromOffsets() throws Exception {
        Map<Integer, Long> starts = log.offsets(path, new OffsetSpec.EarliestSpec());
        Map<Integer, Long> ends = log.offsets(path, new OffsetSpec.LatestSpec());
        Step.same("earliest offsets", starts, Map.of(0, 0L, 1, 0L, 2, 0L));
        Step.same("the sum of latest offsets", ends.values().stream().mapToLong(Long::longValue).sum(), (long) Rows.COUNT);
        List<Log.Found> all = log.all(path, Rows.COUNT);
        try (Table table = log.connection.getTable(path)) {
            RowType type = table.getTableInfo().getRowType();
            for (TableBucket bucket : log.buckets(path)) {
                long end = ends.get(bucket.getBucket());
                Step.check("each bucket has rows", end > 0);
                for (long from : new long[] {0, 1, end / 2, end - 1, end}) {
                    try (LogScanner scanner = table.newScan().createLogScanner()) {
                        Log.subscribe(scanner, bucket, from);
                        List<Log.Found> found = Log.read(scanner, type, (int) (end - from));
                        Step.same("rows from " + from, found, all.stream().filter(row -> row.bucket().equals(bucket) && row.offset() >= from).toList());
                    }
                }
            }
        }
    }

    /** For each time that a row has: the first offset of that time or later; none later than now. */
    void readFromTimes() throws Exception {
        Map<TableBucket, List<Log.Found>> rows = new HashMap<>();
        for (Log.Found row : log.all(path, Rows.COUNT)) rows.computeIfAbsent(row.bucket(), bucket -> new ArrayList<>()).add(row);
        for (Map.Entry<TableBucket, List<Log.Found>> entry : rows.entrySet()) {
            TableBucket bucket = entry.getKey();
            List<Log.Found> of = entry.getValue();
            Step.check("times rise", of.stream().map(Log.Found::timestamp).sorted().toList().equals(of.stream().map(Log.Found::timestamp).toList()));
            for (Log.Found row : of) {
                for (long time : new long[] {row.timestamp(), row.timestamp() + 1}) {
                    if (time > System.currentTimeMillis()) continue;
                    long expected = of.stream().filter(other -> other.timestamp() >= time).mapToLong(Log.Found::offset).findFirst().orElse(of.size());
                    Step.same("offset at " + time, at(bucket.getBucket(), time), expected);
                }
            }
            Step.same("offset at the beginning of time", at(bucket.getBucket(), 0), 0L);
        }
        Step.refused("a time to come", "InvalidTimestampException", () -> at(0, System.currentTimeMillis() + 3_600_000));
    }

    private long at(int bucket, long time) throws Exception {
        return log.admin.listOffsets(path, List.of(bucket), new OffsetSpec.TimestampSpec(time)).bucketResult(bucket).get();
    }

    /** Columns in another order than the table's, single ones, nested ones. */
    void readProjected() throws Exception {
        try (Table table = log.connection.getTable(path)) {
            RowType type = table.getTableInfo().getRowType();
            List<String> backwards = new ArrayList<>(type.getFieldNames());
            Collections.reverse(backwards);
            List<List<String>> choices = new ArrayList<>(List.of(backwards, List.of("st", "id"), List.of("deep", "i8", "ma"), List.of("id", "bo")));
            for (String name : type.getFieldNames()) choices.add(List.of(name));
            for (List<String> names : choices) {
                RowType projected = type.project(names);
                List<String> expected = new ArrayList<>();
                int[] places = names.stream().mapToInt(type::getFieldIndex).toArray();
                for (int number = 0; number < Rows.COUNT; number++) {
                    GenericRow row = Rows.row(format, number), part = new GenericRow(places.length);
                    for (int i = 0; i < places.length; i++) part.setField(i, row.getField(places[i]));
                    expected.add(Text.row(projected, part));
                }
                List<Log.Found> found = Log.all(table.newScan().project(names), projected, log.buckets(path), Rows.COUNT);
                Log.sameRows("columns " + names, Log.sorted(found), Log.sortedTexts(expected));
            }
        }
    }

    /** The last rows of each bucket, whole and projected. */
    void readLimited() throws Exception {
        List<Log.Found> all = log.all(path, Rows.COUNT);
        try (Table table = log.connection.getTable(path)) {
            RowType type = table.getTableInfo().getRowType();
            if (!Main.isNewer() && format == LogFormat.ARROW) {
                lastIds(table, type, all);
                return;
            }
            for (TableBucket bucket : log.buckets(path)) {
                List<String> of = all.stream().filter(row -> row.bucket().equals(bucket)).map(Log.Found::text).toList();
                for (int limit : new int[] {1, 3, of.size(), of.size() + 10}) {
                    List<String> expected = of.subList(Math.max(0, of.size() - limit), of.size());
                    Log.sameRows("the last " + limit, Log.limited(table.newScan().limit(limit), type, bucket), expected);
                }
            }
            lastIds(table, type, all);
        }
    }

    /** Before 1.0 a limit scan gives away nested values of an Arrow log after their memory was freed: only this much can be read. */
    private void lastIds(Table table, RowType type, List<Log.Found> all) throws Exception {
        for (TableBucket bucket : log.buckets(path)) {
            List<String> expected = all.stream().filter(row -> row.bucket().equals(bucket)).map(row -> row.text().replaceFirst(",.*", "}")).toList();
            for (int limit : new int[] {2, expected.size() + 10}) {
                List<String> ids = Log.limited(table.newScan().project(List.of("id")).limit(limit), type.project(List.of("id")), bucket);
                Step.same("the last ids", ids, expected.subList(Math.max(0, expected.size() - limit), expected.size()));
            }
        }
    }

    /** A table a compression, of rows that compress well, with a sticky and a round-robin writer. */
    static void compressions(String bootstrap, String database) throws Exception {
        List<GenericRow> rows = new ArrayList<>();
        List<String> expected = new ArrayList<>();
        for (int copy = 0; copy < 5; copy++) {
            rows.addAll(rows(LogFormat.ARROW, 0, Rows.COUNT));
            expected.addAll(Rows.texts(LogFormat.ARROW, 0, Rows.COUNT));
        }
        for (String assigner : new String[] {"sticky", "round_robin"}) {
            try (Log log = new Log(bootstrap, "client.writer.bucket.no-key-assigner", assigner)) {
                for (String compression : new String[] {"none", "lz4_frame", "zstd"}) {
                    TablePath path = TablePath.of(database, compression + "_" + assigner);
                    log.admin.createTable(path, TableDescriptor.builder().schema(Rows.schema(LogFormat.ARROW)).distributedBy(2)
                            .property("table.log.arrow.compression.type", compression).build(), false).get();
                    log.append(path, rows);
                    Log.sameRows(compression, Log.sorted(log.all(path, rows.size())), Log.sortedTexts(expected));
                    try (Table table = log.connection.getTable(path)) {
                        RowType projected = table.getTableInfo().getRowType().project(List.of("st"));
                        Step.same("projected", Log.all(table.newScan().project(List.of("st")), projected, log.buckets(path), rows.size()).size(), rows.size());
                    }
                    Step.same("rows by statistics", log.admin.getTableStats(path).get().getRowCount(), (long) rows.size());
                }
            }
        }
    }
}
