package session;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.cluster.ServerNode;
import org.apache.fluss.metadata.DatabaseDescriptor;
import org.apache.fluss.metadata.DatabaseInfo;
import org.apache.fluss.metadata.LogFormat;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.types.DataTypes;

/** Databases and tables: made, listed, described, refused. */
final class Databases {
    private final Admin admin;
    private final String database;

    Databases(Log log, String database) {
        this.admin = log.admin;
        this.database = database;
    }

    void servers() throws Exception {
        Set<String> roles = new TreeSet<>();
        for (ServerNode node : admin.getServerNodes().get()) roles.add(node.serverType().name());
        Step.same("roles of servers", roles, Set.of("COORDINATOR", "TABLET_SERVER"));
        Step.check("configs are told", admin.describeClusterConfigs().get() != null);
    }

    void databases() throws Exception {
        DatabaseDescriptor descriptor = DatabaseDescriptor.builder().comment("a session").customProperty("who", "Jávä").build();
        admin.createDatabase(database, descriptor, false).get();
        admin.createDatabase(database, descriptor, true).get();
        Step.refused("the same database", "DatabaseAlreadyExistException", () -> admin.createDatabase(database, descriptor, false).get());
        Step.refused("a bad name", "InvalidDatabaseException", () -> admin.createDatabase("not a name", descriptor, false).get());
        DatabaseInfo info = admin.getDatabaseInfo(database).get();
        Step.same("name", info.getDatabaseName(), database);
        Step.same("comment", info.getDatabaseDescriptor().getComment().orElse(null), "a session");
        Step.same("properties", info.getDatabaseDescriptor().getCustomProperties(), Map.of("who", "Jávä"));
        Step.check("created in this century", info.getCreatedTime() > 946_684_800_000L && info.getModifiedTime() >= info.getCreatedTime());
        Step.check("listed", admin.listDatabases().get().contains(database));
        Step.same("exists", admin.databaseExists(database).get(), true);
        Step.same("another one exists", admin.databaseExists("nowhere").get(), false);
        Step.refused("info of a missing one", "DatabaseNotExistException", () -> admin.getDatabaseInfo("nowhere").get());
        Step.refused("drop of a missing one", "DatabaseNotExistException", () -> admin.dropDatabase("nowhere", false, true).get());
        admin.dropDatabase("nowhere", true, true).get();
        Step.refused("tables of a missing one", "DatabaseNotExistException", () -> admin.listTables("nowhere").get());
    }

    /** A table a format, with every type, described as it was asked for. */
    void describedTables() throws Exception {
        for (LogFormat format : LogFormat.values()) {
            TablePath path = TablePath.of(database, "types_" + format.name().toLowerCase());
            TableDescriptor asked = TableDescriptor.builder().schema(Rows.schema(format)).distributedBy(3, "id").comment("every type, détente")
                    .logFormat(format).property("table.datalake.enabled", "true").property("table.datalake.freshness", "1s").property("table.log.ttl", "30 d")
                    .customProperty("client.note", "a 1").build();
            admin.createTable(path, asked, false).get();
            admin.createTable(path, asked, true).get();
            Step.refused("the same table", "TableAlreadyExistException", () -> admin.createTable(path, asked, false).get());
            TableInfo info = admin.getTableInfo(path).get();
            Step.same("path", info.getTablePath(), path);
            Step.same("schema", info.getSchema(), Rows.schema(format));
            Step.same("schema id", info.getSchemaId(), 1);
            Step.same("buckets", info.getNumBuckets(), 3);
            Step.same("bucket key", info.getBucketKeys(), List.of("id"));
            Step.same("partition keys", info.getPartitionKeys(), List.of());
            Step.same("comment", info.getComment().orElse(null), "every type, détente");
            Step.same("log format", info.getTableConfig().getLogFormat(), format);
            Step.same("lake", info.getTableConfig().isDataLakeEnabled(), true);
            Step.same("freshness", info.getTableConfig().getDataLakeFreshness().toMillis(), 1000L);
            Step.same("ttl", info.getTableConfig().getLogTTLMs(), 30L * 86_400_000);
            Step.same("custom properties", info.getCustomProperties().toMap(), Map.of("client.note", "a 1"));
            Step.same("current schema", admin.getTableSchema(path).get().getSchema(), Rows.schema(format));
            Step.same("schema 1", admin.getTableSchema(path, 1).get().getSchemaId(), 1);
            Step.check("created in this century", info.getCreatedTime() > 946_684_800_000L);
        }
        List<String> tables = new ArrayList<>(admin.listTables(database).get());
        java.util.Collections.sort(tables);
        Step.same("tables", tables, List.of("types_arrow", "types_compacted", "types_indexed"));
    }

    void refusedTables() throws Exception {
        TablePath missing = TablePath.of(database, "nope");
        Schema schema = Schema.newBuilder().column("a", DataTypes.INT()).column("p", DataTypes.STRING()).build();
        Step.same("a missing table exists", admin.tableExists(missing).get(), false);
        Step.refused("a missing table's info", "TableNotExistException", () -> admin.getTableInfo(missing).get());
        Step.refused("a missing table's schema", "TableNotExistException", () -> admin.getTableSchema(missing).get());
        Step.refused("a missing schema", "SchemaNotExistException", () -> admin.getTableSchema(TablePath.of(database, "types_arrow"), 77).get());
        Step.refused("a missing table's drop", "TableNotExistException", () -> admin.dropTable(missing, false).get());
        admin.dropTable(missing, true).get();
        Step.refused("a table in a missing database", "DatabaseNotExistException",
                () -> admin.createTable(TablePath.of("nowhere", "a"), TableDescriptor.builder().schema(schema).distributedBy(1).build(), false).get());
        Step.refused("an unknown property", "InvalidConfigException",
                () -> admin.createTable(missing, TableDescriptor.builder().schema(schema).distributedBy(1).property("table.nope", "1").build(), false).get());
        Step.refused("too many buckets", "TooManyBucketsException",
                () -> admin.createTable(missing, TableDescriptor.builder().schema(schema).distributedBy(1_000_000).build(), false).get());
        Step.refused("a partition key of a type that can't be one", "InvalidTableException", () -> admin.createTable(missing,
                TableDescriptor.builder().schema(Schema.newBuilder().column("a", DataTypes.INT()).column("p", DataTypes.DECIMAL(5, 2)).build()).partitionedBy("p").distributedBy(1).build(), false).get());
        Step.same("nothing was made", admin.tableExists(missing).get(), false);
    }

    /** Everything goes, and stays away. */
    void drops() throws Exception {
        Step.refused("a database with tables", "DatabaseNotEmptyException", () -> admin.dropDatabase(database, false, false).get());
        for (String table : admin.listTables(database).get()) {
            admin.dropTable(TablePath.of(database, table), false).get();
            Step.same("a dropped table exists", admin.tableExists(TablePath.of(database, table)).get(), false);
        }
        Step.same("tables", admin.listTables(database).get(), List.of());
        admin.createTable(TablePath.of(database, "last"), TableDescriptor.builder().schema(Schema.newBuilder().column("a", DataTypes.INT()).build()).distributedBy(1).build(), false).get();
        admin.dropDatabase(database, false, true).get();
        Step.same("the dropped database exists", admin.databaseExists(database).get(), false);
    }
}
