package session;

import java.util.ArrayList;
import java.util.List;

import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.metadata.LogFormat;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableChange;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.types.DataTypes;
import org.apache.fluss.types.RowType;

/** Options and columns that change under open tables. */
final class Alter {
    private final Log log;
    private final String database;

    Alter(Log log, String database) {
        this.log = log;
        this.database = database;
    }

    private void change(TablePath path, TableChange... changes) throws Exception {
        log.admin.alterTable(path, List.of(changes), false).get();
    }

    void options() throws Exception {
        TablePath path = TablePath.of(database, "types_arrow");
        change(path, TableChange.set("client.note", "altered"), TableChange.set("client.more", "é"), TableChange.set("table.datalake.freshness", "2s"));
        TableInfo info = log.admin.getTableInfo(path).get();
        Step.same("custom properties", info.getCustomProperties().toMap(), java.util.Map.of("client.note", "altered", "client.more", "é"));
        Step.same("freshness", info.getTableConfig().getDataLakeFreshness().toMillis(), 2000L);
        change(path, TableChange.reset("client.more"), TableChange.set("client.note", "a 1"), TableChange.set("table.datalake.freshness", "1s"));
        Step.same("custom properties", log.admin.getTableInfo(path).get().getCustomProperties().toMap(), java.util.Map.of("client.note", "a 1"));
        Step.refused("an option that stays", "InvalidAlterTableException", () -> change(path, TableChange.set("table.log.format", "INDEXED")));
        Step.refused("an unknown option", "InvalidAlterTableException", () -> change(path, TableChange.set("table.nope", "1")));
        Step.refused("a missing table", "TableNotExistException", () -> change(TablePath.of(database, "nope"), TableChange.set("client.note", "1")));
        log.admin.alterTable(TablePath.of(database, "nope"), List.of(TableChange.set("client.note", "1")), true).get();
        Step.same("schema id", log.admin.getTableInfo(path).get().getSchemaId(), 1);
    }

    /** Rows of both schemas, read under both, by tables that were opened before and after. */
    void columns() throws Exception {
        for (LogFormat format : LogFormat.values()) {
            // Before 1.0 the client reads a COMPACTED log under one schema only.
            if (format == LogFormat.COMPACTED && !Main.isNewer()) continue;
            TablePath path = TablePath.of(database, "grows_" + format.name().toLowerCase());
            Schema old = Schema.newBuilder().column("id", DataTypes.INT()).column("s", DataTypes.STRING()).build();
            log.admin.createTable(path, TableDescriptor.builder().schema(old).distributedBy(1).logFormat(format)
                    .property("table.datalake.enabled", "true").property("table.datalake.freshness", "1s").build(), false).get();
            try (Table before = log.connection.getTable(path); LogScanner running = before.newScan().createLogScanner()) {
                AppendWriter writer = before.newAppend().createWriter();
                running.subscribeFromBeginning(0);
                for (int i = 0; i < 3; i++) writer.append(GenericRow.of(i, text("old" + i)));
                writer.flush();
                Step.same("rows before", Log.read(running, old.getRowType(), 3).size(), 3);
                change(path, TableChange.addColumn("n", DataTypes.BIGINT(), "new", TableChange.ColumnPosition.last()),
                        TableChange.addColumn("a", DataTypes.ARRAY(DataTypes.STRING()), null, TableChange.ColumnPosition.last()));
                TableInfo info = log.admin.getTableInfo(path).get();
                Step.same("schema id", info.getSchemaId(), 2);
                Step.same("columns", info.getRowType().getFieldNames(), List.of("id", "s", "n", "a"));
                Step.same("the old schema", log.admin.getTableSchema(path, 1).get().getSchema(), old);
                try (Log second = new Log(log.bootstrap)) {
                    List<GenericRow> rows = new ArrayList<>();
                    for (int i = 3; i < 6; i++) rows.add(GenericRow.of(i, text("new" + i), (long) i, org.apache.fluss.row.GenericArray.of(text("é"), null)));
                    second.append(path, rows);
                    // The writer that knows the old schema goes on.
                    for (int i = 6; i < 9; i++) writer.append(GenericRow.of(i, text("old" + i)));
                    writer.flush();
                    List<String> now = new ArrayList<>(), then = new ArrayList<>();
                    for (int i = 0; i < 9; i++) {
                        boolean isNew = i >= 3 && i < 6;
                        String start = "{\"id\":" + i + ",\"s\":\"" + (isNew ? "new" : "old") + i + "\"";
                        then.add(start + "}");
                        now.add(start + (isNew ? ",\"n\":" + i + ",\"a\":[\"é\",null]}" : ",\"n\":null,\"a\":null}"));
                    }
                    Log.sameRows("rows of both schemas", second.all(path, 9).stream().map(Log.Found::text).toList(), now);
                    Log.sameRows("seen by a scan that was open", Log.read(running, old.getRowType(), 6).stream().map(Log.Found::text).toList(), then.subList(3, 9));
                    projected(second, path, now);
                    Log.sameRows("limited", limited(second, path), now.subList(2, 9));
                }
            }
            Step.refused("a column that is there", "InvalidAlterTableException", () -> change(path, TableChange.addColumn("n", DataTypes.INT(), null, TableChange.ColumnPosition.last())));
            Step.refused("a column without nulls", "InvalidAlterTableException", () -> change(path, TableChange.addColumn("m", DataTypes.INT().copy(false), null, TableChange.ColumnPosition.last())));
        }
    }

    private static List<String> limited(Log log, TablePath path) throws Exception {
        try (Table table = log.connection.getTable(path)) {
            return Log.limited(table.newScan().limit(7), table.getTableInfo().getRowType(), log.buckets(path).get(0));
        }
    }

    private static void projected(Log log, TablePath path, List<String> all) throws Exception {
        try (Table table = log.connection.getTable(path)) {
            List<TableBucket> buckets = log.buckets(path);
            for (List<String> names : List.of(List.of("n"), List.of("a", "id"), List.of("s", "n"), List.of("s"))) {
                RowType type = table.getTableInfo().getRowType().project(names);
                List<String> found = Log.all(table.newScan().project(names), type, buckets, 9).stream().map(Log.Found::text).toList();
                for (int i = 0; i < 9; i++) {
                    StringBuilder expected = new StringBuilder();
                    boolean isNew = i >= 3 && i < 6;
                    for (String name : names) {
                        String value = switch (name) {
                            case "id" -> String.valueOf(i);
                            case "s" -> "\"" + (isNew ? "new" : "old") + i + "\"";
                            case "n" -> isNew ? String.valueOf(i) : "null";
                            default -> isNew ? "[\"é\",null]" : "null";
                        };
                        expected.append(expected.isEmpty() ? "{" : ",").append("\"").append(name).append("\":").append(value);
                    }
                    Step.same("columns " + names + " of row " + i, found.get(i), expected + "}");
                }
            }
        }
    }

    private static BinaryString text(String text) {
        return BinaryString.fromString(text);
    }
}
