package session;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;

import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.writer.AppendWriter;
import org.apache.fluss.metadata.LogFormat;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.types.DataTypes;

/**
 * A session with a released Java client on log tables and tables with a primary key: a line a step, exit 1 at the first difference.
 *
 * <pre>
 * session H:P DATABASE          everything, but for what `drop` does
 * read H:P DATABASE             reads what a session of another client version wrote, and writes to its tables
 * expected FORMAT               the rows of every type, as canonical JSON
 * cut H:P DATABASE PORT...      appends through a proxy on the host H and these ports that cuts connections
 * drop H:P DATABASE             drops everything
 * </pre>
 */
public final class Main {
    private Main() {}

    public static void main(String[] arguments) throws Exception {
        String command = arguments[0];
        if (command.equals("expected")) {
            LogFormat format = LogFormat.valueOf(arguments[1]);
            java.io.PrintStream out = new java.io.PrintStream(System.out, true, "UTF-8");
            Rows.texts(format, 0, Rows.COUNT).forEach(out::println);
            return;
        }
        String bootstrap = arguments[1], database = arguments[2];
        switch (command) {
            case "session" -> session(bootstrap, database);
            case "read" -> read(bootstrap, database);
            case "cut" -> cut(bootstrap, database, Arrays.stream(arguments).skip(3).mapToInt(Integer::parseInt).toArray());
            case "drop" -> {
                try (Log log = new Log(bootstrap)) {
                    Step.run("drops", new Databases(log, database)::drops);
                }
            }
            default -> throw new IllegalArgumentException(command);
        }
        Step.end();
    }

    private static void session(String bootstrap, String database) throws Exception {
        try (Log log = new Log(bootstrap)) {
            Databases databases = new Databases(log, database);
            Step.run("servers", databases::servers);
            Step.run("databases", databases::databases);
            Step.run("tables, described", databases::describedTables);
            Step.run("tables, refused", databases::refusedTables);
            for (LogFormat format : LogFormat.values()) {
                Types types = new Types(log, database, format);
                String name = format.name();
                Step.run(name + ": rows of every type appended", types::write);
                Step.run(name + ": scanned from the beginning", types::readFromTheBeginning);
                Step.run(name + ": scanned from offsets", types::readFromOffsets);
                Step.run(name + ": offsets by time", types::readFromTimes);
                Step.run(name + ": projected", types::readProjected);
                Step.run(name + ": limited", types::readLimited);
            }
            Step.run("compressions and assigners", () -> Types.compressions(bootstrap, database));
            Partitions partitions = new Partitions(log, database);
            Step.run("partitions by hand and by writers", partitions::byHandAndByWriters);
            Step.run("partitions of every type", partitions::ofEveryType);
            Step.run("automatic partitions", partitions::automatic);
            Alter alter = new Alter(log, database);
            Step.run("options altered", alter::options);
            Step.run("columns added", alter::columns);
            Keys keys = new Keys(log, database);
            Step.run("keys: puts and deletes, looked up and scanned", keys::putsAndDeletes);
            Step.run("keys: changelog", keys::changelog);
            Step.run("keys: partial updates", keys::partialUpdates);
            Step.run("keys: prefixes", keys::prefixes);
            Step.run("keys: partitions", keys::partitions);
            Step.run("keys: merge engines", keys::mergeEngines);
            newer(log, database);
            Lake lake = new Lake(log);
            Step.run("lake, refused", () -> lake.refusals(database));
            for (String table : new String[] {"types_arrow", "types_indexed", "types_compacted", "grows_arrow", "parts"}) {
                Step.run("lake of " + table, () -> lake.reaches(TablePath.of(database, table)));
            }
        }
    }

    /** Whether the client is of 1.0 or later: `Newer` is compiled with such ones alone. */
    static boolean isNewer() {
        return Main.class.getResource("Newer.class") != null;
    }

    /** The steps that only a newer client knows. */
    private static void newer(Log log, String database) throws Exception {
        if (isNewer()) Class.forName("session.Newer").getMethod("steps", Log.class, String.class).invoke(null, log, database);
    }

    /** What another version wrote is read; what this one adds is read, too. */
    private static void read(String bootstrap, String database) throws Exception {
        try (Log log = new Log(bootstrap)) {
            for (LogFormat format : LogFormat.values()) {
                TablePath path = TablePath.of(database, "types_" + format.name().toLowerCase());
                Types types = new Types(log, database, format);
                Step.run(format + ": written by another version, scanned", types::readFromTheBeginning);
                Step.run(format + ": written by another version, projected", types::readProjected);
                Step.run(format + ": written by another version, limited", types::readLimited);
                Step.run(format + ": written by two versions", () -> {
                    log.append(path, Types.rows(format, 0, Rows.COUNT));
                    List<String> twice = new ArrayList<>(Rows.texts(format, 0, Rows.COUNT));
                    twice.addAll(Rows.texts(format, 0, Rows.COUNT));
                    Log.sameRows(format.name(), Log.sorted(log.all(path, 2 * Rows.COUNT)), Log.sortedTexts(twice));
                });
                Step.run("lake of " + path, () -> new Lake(log).reaches(path));
            }
            Step.run("keys: written by two versions", new Keys(log, database)::othersTables);
        }
    }

    /** Every row once and in order, though connections are cut in the middle of appends. */
    private static void cut(String bootstrap, String database, int... ports) throws Exception {
        String host = bootstrap.substring(0, bootstrap.indexOf(':'));
        int count = 4000;
        try (Proxy proxy = new Proxy(host, "127.0.0.1", ports);
                Log log = new Log(bootstrap, "client.writer.batch-size", "8kb", "client.writer.batch-timeout", "1ms")) {
            Step.run("appends through cut connections", () -> {
                log.admin.createDatabase(database, org.apache.fluss.metadata.DatabaseDescriptor.EMPTY, true).get();
                TablePath path = TablePath.of(database, "cut");
                Schema schema = Schema.newBuilder().column("id", DataTypes.INT()).column("s", DataTypes.STRING()).build();
                log.admin.createTable(path, TableDescriptor.builder().schema(schema).distributedBy(2, "id").build(), false).get();
                List<String> expected = new ArrayList<>();
                try (Table table = log.connection.getTable(path)) {
                    AppendWriter writer = table.newAppend().createWriter();
                    List<CompletableFuture<?>> results = new ArrayList<>();
                    for (int i = 0; i < count; i++) {
                        GenericRow row = GenericRow.of(i, BinaryString.fromString("row " + i + " ".repeat(i % 100)));
                        expected.add(Text.row(schema.getRowType(), row));
                        results.add(writer.append(row));
                        if (i % 100 == 99) writer.flush();
                    }
                    writer.flush();
                    for (CompletableFuture<?> result : results) result.get();
                }
                proxy.stopCutting();
                Step.check("requests cut in half: " + proxy.halves, proxy.halves.get() >= 3);
                Step.check("answers lost: " + proxy.lostAnswers, proxy.lostAnswers.get() >= 3);
                List<Log.Found> found = log.all(path, count);
                Log.sameRows("rows", Log.sorted(found), Log.sortedTexts(expected));
                int[] last = {-1, -1};
                for (Log.Found row : found) {
                    int id = Integer.parseInt(row.text().replaceAll("\\{\"id\":(\\d+),.*", "$1"));
                    int bucket = row.bucket().getBucket();
                    Step.check("row " + id + " after " + last[bucket], id > last[bucket]);
                    last[bucket] = id;
                }
            });
        }
    }
}
