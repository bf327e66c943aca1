package session;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;

import org.apache.fluss.client.admin.OffsetSpec;
import org.apache.fluss.client.metadata.LakeSnapshot;
import org.apache.fluss.exception.LakeTableSnapshotNotExistException;
import org.apache.fluss.metadata.PartitionInfo;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.types.DataTypes;

/** What clients are told of the lake. */
final class Lake {
    private final Log log;

    Lake(Log log) {
        this.log = log;
    }

    /** Waits until the newest lake snapshot holds all that the log holds; its offsets are those of the log's ends. */
    void reaches(TablePath path) throws Exception {
        TableInfo info = log.admin.getTableInfo(path).get();
        Map<TableBucket, Long> ends = new HashMap<>();
        if (info.isPartitioned()) {
            for (PartitionInfo partition : log.admin.listPartitionInfos(path).get()) {
                for (TableBucket bucket : log.buckets(path)) {
                    if (bucket.getPartitionId() != partition.getPartitionId()) continue;
                    int number = bucket.getBucket();
                    ends.put(bucket, log.admin.listOffsets(path, partition.getPartitionName(), java.util.List.of(number), new OffsetSpec.LatestSpec()).bucketResult(number).get());
                }
            }
        } else {
            log.offsets(path, new OffsetSpec.LatestSpec()).forEach((bucket, end) -> ends.put(new TableBucket(info.getTableId(), bucket), end));
        }
        ends.values().removeIf(end -> end == 0);
        long until = System.nanoTime() + 90_000_000_000L;
        Map<TableBucket, Long> reached = Map.of();
        while (System.nanoTime() < until) {
            try {
                LakeSnapshot newest = log.admin.getLatestLakeSnapshot(path).get();
                reached = newest.getTableBucketsOffset();
                if (covers(reached, ends)) {
                    LakeSnapshot same = log.admin.getLakeSnapshot(path, newest.getSnapshotId()).get();
                    Step.same("the snapshot by its number", same.getTableBucketsOffset(), reached);
                    LakeSnapshot readable = log.admin.getReadableLakeSnapshot(path).get();
                    Step.check("the readable snapshot is " + readable.getSnapshotId(), readable.getSnapshotId() >= newest.getSnapshotId());
                    Step.same("offsets of the readable snapshot", readable.getTableBucketsOffset(), reached);
                    return;
                }
            } catch (ExecutionException error) {
                if (!(error.getCause() instanceof LakeTableSnapshotNotExistException)) throw error;
            }
            Thread.sleep(100);
        }
        throw new Step.Difference("the lake of " + path + " is at " + reached + ", the log at " + ends);
    }

    private static boolean covers(Map<TableBucket, Long> reached, Map<TableBucket, Long> ends) {
        return ends.entrySet().stream().allMatch(end -> end.getValue().equals(reached.get(end.getKey())));
    }

    void refusals(String database) throws Exception {
        TablePath path = TablePath.of(database, "dry");
        log.admin.createTable(path, TableDescriptor.builder().schema(Schema.newBuilder().column("a", DataTypes.INT()).build()).distributedBy(1).build(), false).get();
        Step.refused("a lake that isn't there", "LakeTableSnapshotNotExistException", () -> log.admin.getLatestLakeSnapshot(path).get());
        Step.refused("a snapshot that isn't there", "LakeTableSnapshotNotExistException", () -> log.admin.getLakeSnapshot(path, 1).get());
        Step.refused("a readable snapshot that isn't there", "LakeTableSnapshotNotExistException", () -> log.admin.getReadableLakeSnapshot(path).get());
        Step.refused("the lake of a missing table", "TableNotExistException", () -> log.admin.getLatestLakeSnapshot(TablePath.of(database, "nope")).get());
    }
}
