package lakecheck;

import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.CatalogContext;
import org.apache.paimon.catalog.CatalogFactory;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.Decimal;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.data.Timestamp;
import org.apache.paimon.options.Options;
import org.apache.paimon.predicate.Predicate;
import org.apache.paimon.predicate.PredicateBuilder;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.Table;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.table.source.TableRead;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.DecimalType;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/**
 * Answers questions about tables of a warehouse, one a line of standard input, in one JVM: {@code Answers WAREHOUSE}.
 *
 * <pre>
 * rows   DB.TABLE                                     its rows as canonical JSON
 * check  DB.TABLE                                     as `Main check`
 * types  DB.TABLE                                     the types of its columns
 * filter DB.TABLE COLUMN OPERATOR LITERAL pushed|all  the ids that pass; `all` leaves the test of rows to us
 * </pre>
 *
 * Parts stand between tabs. An answer is a line {@code ANSWER n} or {@code ERROR n} and n lines. A literal is text in hex, and of it:
 * numbers as they are, decimals unscaled, DATE days, TIME milliseconds, TIMESTAMP nanoseconds since 1970.
 */
public class Answers {
    public static void main(String[] a) throws Exception {
        PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, StandardCharsets.UTF_8);
        Options o = new Options();
        o.set("warehouse", a[0]);
        o.set("cache-enabled", "false");
        try (Catalog cat = CatalogFactory.createCatalog(CatalogContext.create(o));
                BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                List<String> answer;
                String word = "ANSWER";
                try {
                    answer = answer(cat, line.split("\t", -1), out);
                } catch (Throwable e) {
                    word = "ERROR";
                    answer = new ArrayList<>();
                    for (Throwable c = e; c != null; c = c.getCause()) {
                        answer.add((c.getClass().getSimpleName() + ": " + c.getMessage()).replace("\n", " "));
                    }
                }
                out.println(word + " " + answer.size());
                answer.forEach(out::println);
                out.flush();
            }
        }
    }

    private static List<String> answer(Catalog cat, String[] question, PrintStream out) throws Exception {
        Table t = cat.getTable(Identifier.fromString(question[1]));
        List<String> answer = new ArrayList<>();
        switch (question[0]) {
            case "rows":
                return Main.rows(t);
            case "check":
                return new Main((FileStoreTable) t).problems();
            case "types":
                for (DataField f : t.rowType().getFields()) {
                    answer.add(f.type().asSQLString());
                }
                return answer;
            case "filter":
                List<Long> ids = filtered(t, question);
                Collections.sort(ids);
                ids.forEach(id -> answer.add("" + id));
                return answer;
            default:
                throw new IllegalArgumentException(question[0]);
        }
    }

    private static List<Long> filtered(Table t, String[] question) throws Exception {
        int column = t.rowType().getFieldIndex(question[2]);
        int id = t.rowType().getFieldIndex("id");
        String text = new String(new BigInteger("01" + question[4], 16).toByteArray(), StandardCharsets.UTF_8).substring(1);
        Predicate p = predicate(new PredicateBuilder(t.rowType()), column, question[3], literal(t.rowType().getTypeAt(column), text));
        ReadBuilder rb = t.newReadBuilder().withFilter(p);
        TableRead read = rb.newRead();
        boolean all = question[5].equals("all");
        List<Long> ids = new ArrayList<>();
        try (RecordReader<InternalRow> r = (all ? read : read.executeFilter()).createReader(rb.newScan().plan().splits())) {
            r.forEachRemaining(
                    row -> {
                        if (!all || p.test(row)) {
                            ids.add(row.getLong(id));
                        }
                    });
        }
        return ids;
    }

    private static Predicate predicate(PredicateBuilder b, int column, String operator, Object literal) {
        switch (operator) {
            case "=":
                return b.equal(column, literal);
            case "!=":
                return b.notEqual(column, literal);
            case "<":
                return b.lessThan(column, literal);
            case "<=":
                return b.lessOrEqual(column, literal);
            case ">":
                return b.greaterThan(column, literal);
            case ">=":
                return b.greaterOrEqual(column, literal);
            case "IS NULL":
                return b.isNull(column);
            case "IS NOT NULL":
                return b.isNotNull(column);
            default:
                throw new IllegalArgumentException(operator);
        }
    }

    private static Object literal(DataType type, String text) {
        switch (type.getTypeRoot()) {
            case BOOLEAN:
                return Boolean.valueOf(text);
            case TINYINT:
                return text.isEmpty() ? null : Byte.valueOf(text);
            case SMALLINT:
                return text.isEmpty() ? null : Short.valueOf(text);
            case INTEGER:
            case DATE:
            case TIME_WITHOUT_TIME_ZONE:
                return text.isEmpty() ? null : Integer.valueOf(text);
            case BIGINT:
                return text.isEmpty() ? null : Long.valueOf(text);
            case FLOAT:
                return text.isEmpty() ? null : Float.valueOf(text);
            case DOUBLE:
                return text.isEmpty() ? null : Double.valueOf(text);
            case DECIMAL:
                DecimalType d = (DecimalType) type;
                return text.isEmpty() ? null : Decimal.fromBigDecimal(new BigDecimal(new BigInteger(text), d.getScale()), d.getPrecision(), d.getScale());
            case CHAR:
            case VARCHAR:
                return BinaryString.fromString(text);
            case BINARY:
            case VARBINARY:
                byte[] bytes = new byte[text.length() / 2];
                for (int i = 0; i < bytes.length; i++) {
                    bytes[i] = (byte) Integer.parseInt(text.substring(2 * i, 2 * i + 2), 16);
                }
                return bytes;
            case TIMESTAMP_WITHOUT_TIME_ZONE:
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                if (text.isEmpty()) {
                    return null;
                }
                BigInteger[] parts = new BigInteger(text).divideAndRemainder(BigInteger.valueOf(1_000_000));
                long millis = parts[0].longValueExact();
                int nanos = parts[1].intValueExact();
                return nanos < 0 ? Timestamp.fromEpochMillis(millis - 1, nanos + 1_000_000) : Timestamp.fromEpochMillis(millis, nanos);
            default:
                return null;
        }
    }
}
