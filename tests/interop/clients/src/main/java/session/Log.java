package session;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.client.admin.OffsetSpec;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.Scan;
import org.apache.fluss.client.table.scanner.ScanRecord;
import org.apache.fluss.client.table.scanner.batch.BatchScanner;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.client.table.scanner.log.ScanRecords;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.PartitionInfo;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.record.ChangeType;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.types.RowType;
import org.apache.fluss.utils.CloseableIterator;

/** A connection, and reads of log tables through it, every row as text. */
final class Log implements AutoCloseable {
    private static final Duration LONGEST_READ = Duration.ofSeconds(60);

    /** A row where it stands. */
    record Found(TableBucket bucket, long offset, long timestamp, String text) {}

    final String bootstrap;
    final Connection connection;
    final Admin admin;

    Log(String bootstrap, String... options) {
        this.bootstrap = bootstrap;
        Configuration configuration = new Configuration();
        configuration.setString("bootstrap.servers", bootstrap);
        for (int i = 0; i < options.length; i += 2) configuration.setString(options[i], options[i + 1]);
        connection = ConnectionFactory.createConnection(configuration);
        admin = connection.getAdmin();
    }

    @Override
    public void close() throws Exception {
        admin.close();
        connection.close();
    }

    void append(TablePath path, Collection<? extends InternalRow> rows) throws Exception {
        try (Table table = connection.getTable(path)) {
            AppendWriter writer = table.newAppend().createWriter();
            List<java.util.concurrent.CompletableFuture<?>> results = new ArrayList<>();
            for (InternalRow row : rows) results.add(writer.append(row));
            writer.flush();
            for (java.util.concurrent.CompletableFuture<?> result : results) result.get();
        }
    }

    /** The buckets of a table, of all its partitions. */
    List<TableBucket> buckets(TablePath path) throws Exception {
        TableInfo info = admin.getTableInfo(path).get();
        List<TableBucket> buckets = new ArrayList<>();
        if (info.isPartitioned()) {
            for (PartitionInfo partition : admin.listPartitionInfos(path).get()) {
                for (int bucket = 0; bucket < info.getNumBuckets(); bucket++) buckets.add(new TableBucket(info.getTableId(), partition.getPartitionId(), bucket));
            }
        } else {
            for (int bucket = 0; bucket < info.getNumBuckets(); bucket++) buckets.add(new TableBucket(info.getTableId(), bucket));
        }
        return buckets;
    }

    static void subscribe(LogScanner scanner, TableBucket bucket, long offset) {
        if (bucket.getPartitionId() == null) scanner.subscribe(bucket.getBucket(), offset);
        else scanner.subscribe(bucket.getPartitionId(), bucket.getBucket(), offset);
    }

    /** All rows from the beginning. */
    List<Found> all(TablePath path, int count) throws Exception {
        try (Table table = connection.getTable(path)) {
            return all(table.newScan(), table.getTableInfo().getRowType(), buckets(path), count);
        }
    }

    static List<Found> all(Scan scan, RowType type, List<TableBucket> buckets, int count) throws Exception {
        try (LogScanner scanner = scan.createLogScanner()) {
            for (TableBucket bucket : buckets) subscribe(scanner, bucket, LogScanner.EARLIEST_OFFSET);
            return read(scanner, type, count);
        }
    }

    /** Reads until there are {@code count} rows, and once more, which must find none. */
    static List<Found> read(LogScanner scanner, RowType type, int count) {
        List<Found> found = new ArrayList<>();
        long until = System.nanoTime() + LONGEST_READ.toNanos();
        while (found.size() < count) {
            if (System.nanoTime() > until) throw new Step.Difference("a scan gave " + found.size() + " of " + count + " rows");
            collect(scanner.poll(Duration.ofMillis(500)), type, found);
        }
        collect(scanner.poll(Duration.ofMillis(100)), type, found);
        Step.same("rows of a scan", found.size(), count);
        Map<TableBucket, Long> last = new java.util.HashMap<>();
        for (Found row : found) {
            Long before = last.put(row.bucket(), row.offset());
            if (before != null) Step.same("the offset after " + before + " of " + row.bucket(), row.offset(), before + 1);
        }
        return found;
    }

    private static void collect(ScanRecords records, RowType type, List<Found> found) {
        for (TableBucket bucket : records.buckets()) {
            for (ScanRecord record : records.records(bucket)) {
                Step.same("change type", record.getChangeType(), ChangeType.APPEND_ONLY);
                found.add(new Found(bucket, record.logOffset(), record.timestamp(), Text.row(type, record.getRow())));
            }
        }
    }

    static List<String> sorted(List<Found> rows) {
        List<String> texts = new ArrayList<>();
        for (Found row : rows) texts.add(row.text());
        return sortedTexts(texts);
    }

    static List<String> sortedTexts(Collection<String> texts) {
        List<String> sorted = new ArrayList<>(texts);
        Collections.sort(sorted);
        return sorted;
    }

    /** Compares rows one by one, so that a difference is short. */
    static void sameRows(String what, List<String> found, List<String> expected) {
        for (int i = 0; i < Math.min(found.size(), expected.size()); i++) Step.same(what + ", row " + i, found.get(i), expected.get(i));
        Step.same(what + ": rows", found.size(), expected.size());
    }

    /** Offsets of all buckets of a table without partitions. */
    Map<Integer, Long> offsets(TablePath path, OffsetSpec spec) throws Exception {
        List<Integer> buckets = new ArrayList<>();
        for (int bucket = 0; bucket < admin.getTableInfo(path).get().getNumBuckets(); bucket++) buckets.add(bucket);
        return new TreeMap<>(admin.listOffsets(path, buckets, spec).all().get());
    }

    /** The rows of a batch scan. */
    static List<String> limited(Scan scan, RowType type, TableBucket bucket) throws Exception {
        try (BatchScanner scanner = scan.createBatchScanner(bucket)) {
            return drained(scanner, type);
        }
    }

    static List<String> drained(BatchScanner scanner, RowType type) throws Exception {
        List<String> texts = new ArrayList<>();
        CloseableIterator<InternalRow> batch;
        while ((batch = scanner.pollBatch(Duration.ofSeconds(10))) != null) {
            while (batch.hasNext()) texts.add(Text.row(type, batch.next()));
            batch.close();
        }
        return texts;
    }
}
