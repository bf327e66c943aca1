package session;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.metadata.PartitionInfo;
import org.apache.fluss.metadata.PartitionSpec;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableChange;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.types.DataTypes;

/** The bucket count of a table changes while writers are at work: no row is lost, none is there twice. */
final class Rescale {
    private static final int WRITERS = 4, CHANGES = 10;

    private final Log log;
    private final TablePath path;

    Rescale(Log log, String database) {
        this.log = log;
        this.path = TablePath.of(database, "rescaled");
    }

    void underLoad() throws Exception {
        Schema schema = Schema.newBuilder().column("id", DataTypes.INT()).column("dt", DataTypes.STRING()).column("s", DataTypes.STRING()).build();
        log.admin.createTable(path, TableDescriptor.builder().schema(schema).distributedBy(3, "id").partitionedBy("dt")
                .property("table.datalake.enabled", "true").property("table.datalake.freshness", "1s").build(), false).get();
        AtomicInteger changed = new AtomicInteger();
        ExecutorService threads = Executors.newFixedThreadPool(WRITERS);
        List<Future<List<String>>> writers = new ArrayList<>();
        for (int writer = 0; writer < WRITERS; writer++) {
            int number = writer;
            writers.add(threads.submit(() -> write(number, changed)));
        }
        for (int change = 1; change <= CHANGES; change++) {
            int count = 1 + change * 5 % 8;
            PartitionSpec passing = new PartitionSpec(Map.of("dt", "passing" + change));
            log.admin.createPartition(path, passing, false).get();
            log.admin.alterTable(path, List.of(TableChange.modifyBucketCount(count)), false).get();
            TableInfo info = log.admin.getTableInfo(path).get();
            Step.same("buckets after change " + change, info.getNumBuckets(), count);
            Step.same("epoch after change " + change, info.getBucketCountEpoch(), (long) change);
            log.admin.dropPartition(path, passing, false).get();
            changed.set(change);
        }
        List<String> expected = new ArrayList<>();
        for (Future<List<String>> writer : writers) expected.addAll(writer.get());
        threads.shutdown();
        List<TableBucket> buckets = new ArrayList<>();
        long table = log.admin.getTableInfo(path).get().getTableId();
        for (PartitionInfo partition : log.admin.listPartitionInfos(path).get()) {
            for (int bucket = 0; bucket < partition.getBucketCount(); bucket++) buckets.add(new TableBucket(table, partition.getPartitionId(), bucket));
        }
        try (Table all = log.connection.getTable(path)) {
            List<Log.Found> found = Log.all(all.newScan(), schema.getRowType(), buckets, expected.size());
            Log.sameRows("rows", Log.sorted(found), Log.sortedTexts(expected));
        }
    }

    /** A client that guessed the count of a partition in the making gives rows back unsent: they are to be sent again. */
    private void append(AppendWriter writer, List<GenericRow> rows) throws Exception {
        for (long until = System.nanoTime() + 10_000_000_000L; !rows.isEmpty();) {
            if (System.nanoTime() > until) throw new Step.Difference(rows.size() + " rows are given back again and again");
            List<CompletableFuture<?>> results = new ArrayList<>();
            for (GenericRow row : rows) results.add(writer.append(row));
            writer.flush();
            List<GenericRow> unsent = new ArrayList<>();
            for (int i = 0; i < results.size(); i++) {
                try {
                    results.get(i).get();
                } catch (ExecutionException error) {
                    if (!String.valueOf(error.getCause()).contains("BucketRescaleException")) throw error;
                    unsent.add(rows.get(i));
                }
            }
            rows = unsent;
        }
    }

    /** Writes to old and new partitions until all changes are made, and a little longer; the rows, all acknowledged. */
    private List<String> write(int writer, AtomicInteger changed) throws Exception {
        List<String> written = new ArrayList<>();
        try (Table table = log.connection.getTable(path)) {
            AppendWriter append = table.newAppend().createWriter();
            for (int id = writer, after = 0; after < 5; id += WRITERS * 50) {
                int seen = changed.get();
                if (seen == CHANGES) after++;
                List<GenericRow> rows = new ArrayList<>();
                for (int i = 0; i < 50; i++) {
                    // A partition of the time of this change, and one that was there before all of them.
                    String dt = i % 2 == 0 ? "old" : "made" + seen;
                    GenericRow row = GenericRow.of(id + i * WRITERS, BinaryString.fromString(dt), BinaryString.fromString("w" + writer));
                    rows.add(row);
                    written.add(Text.row(table.getTableInfo().getRowType(), row));
                }
                append(append, rows);
            }
        }
        return written;
    }
}
