package session;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.fluss.metadata.LogFormat;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.Decimal;
import org.apache.fluss.row.GenericArray;
import org.apache.fluss.row.GenericMap;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.TimestampLtz;
import org.apache.fluss.row.TimestampNtz;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.DataTypes;

/**
 * Rows of every type, made from their number alone: what one client version wrote, another can compare.
 * Column `id` is the number; another column goes through the ends of its type and null.
 */
final class Rows {
    /** So many rows bring each value of each type, and a row of nulls (number 0). */
    static final int COUNT = 60;

    private static final Map<String, DataType> TYPES = new LinkedHashMap<>();
    private static final Map<String, Object[]> VALUES = new LinkedHashMap<>();

    private static void column(String name, DataType type, Object... values) {
        TYPES.put(name, type);
        VALUES.put(name, values);
    }

    private static BinaryString text(String text) {
        return BinaryString.fromString(text);
    }

    private static Decimal decimal(String unscaled, int precision, int scale) {
        return Decimal.fromBigDecimal(new BigDecimal(new BigInteger(unscaled), scale), precision, scale);
    }

    private static Object[] decimals(int precision, int scale) {
        String nines = "9".repeat(precision);
        return new Object[] {decimal("0", precision, scale), decimal("1", precision, scale), decimal("-1", precision, scale),
            decimal(nines, precision, scale), decimal("-" + nines, precision, scale)};
    }

    /**
     * Seconds and nanoseconds at the ends of what a precision holds: years 1 to 9999, or what fits 64 bits of nanoseconds. Before 1970 they
     * are whole milliseconds: both versions of the client write others right, and fail when they read them from an Arrow log.
     */
    private static List<long[]> instants(int precision) {
        long tick = Math.round(Math.pow(10, 9 - precision));
        List<long[]> found = new ArrayList<>(List.of(new long[] {0, 0}, new long[] {-1, precision == 0 ? 0 : 999_000_000}, new long[] {0, precision == 0 ? 0 : tick},
                new long[] {1_746_529_200, precision == 0 ? 0 : 1_000_000_000 - tick}, new long[] {-2_208_988_800L, 0}));
        if (precision > 6) {
            found.add(new long[] {-9_223_372_036L, 146_000_000});
            found.add(new long[] {9_223_372_036L, 854_775_807 / tick * tick});
        } else {
            found.add(new long[] {-62_135_596_800L, 0});
            found.add(new long[] {253_402_300_799L, precision == 0 ? 0 : 1_000_000_000 - tick});
        }
        return found;
    }

    private static Object[] plain(int precision) {
        return instants(precision).stream().map(at -> TimestampNtz.fromMillis(at[0] * 1000 + at[1] / 1_000_000, (int) (at[1] % 1_000_000))).toArray();
    }

    private static Object[] local(int precision) {
        return instants(precision).stream().map(at -> TimestampLtz.fromEpochMillis(at[0] * 1000 + at[1] / 1_000_000, (int) (at[1] % 1_000_000))).toArray();
    }

    static {
        column("bo", DataTypes.BOOLEAN(), true, false);
        column("i8", DataTypes.TINYINT(), (byte) 0, Byte.MIN_VALUE, Byte.MAX_VALUE);
        column("i16", DataTypes.SMALLINT(), (short) 0, Short.MIN_VALUE, Short.MAX_VALUE);
        column("i32", DataTypes.INT(), 0, Integer.MIN_VALUE, Integer.MAX_VALUE, -1);
        column("i64", DataTypes.BIGINT(), 0L, Long.MIN_VALUE, Long.MAX_VALUE, -1L);
        column("f32", DataTypes.FLOAT(), 0f, 0.1f, -1.5f, Float.MAX_VALUE, -Float.MAX_VALUE, 7.888609E-31f, Float.NaN, Float.POSITIVE_INFINITY);
        column("f64", DataTypes.DOUBLE(), 0d, 0.1, -1.5, Double.MAX_VALUE, -Double.MAX_VALUE, Double.MIN_NORMAL, Double.NaN, Double.NEGATIVE_INFINITY);
        column("d5", DataTypes.DECIMAL(5, 2), decimals(5, 2));
        column("d18", DataTypes.DECIMAL(18, 0), decimals(18, 0));
        column("d20", DataTypes.DECIMAL(20, 5), decimals(20, 5));
        column("d38", DataTypes.DECIMAL(38, 38), decimals(38, 38));
        column("ch", DataTypes.CHAR(3), text("abc"), text("é水😀"), text("0 %"));
        column("st", DataTypes.STRING(), text(""), text("a"), text("1234567"), text("12345678"), text("détente 水路 😀"), text("\0\1\t\n\r\"\\/"), text("x".repeat(3000)));
        column("bi", DataTypes.BINARY(4), new byte[] {0, -1, 16, -85}, new byte[] {0, 0, 0, 1}, new byte[] {127, -128, -127, 1});
        column("by", DataTypes.BYTES(), new byte[0], new byte[] {0}, new byte[] {0, -1, 16, -85, 1, 2, 3, 4}, new byte[300]);
        column("da", DataTypes.DATE(), 0, -1, 20_000, -719_162, 2_932_896);
        column("t0", DataTypes.TIME(0), 0, 43_200_000, 86_399_000);
        column("t3", DataTypes.TIME(3), 0, 1, 43_200_001, 86_399_999);
        for (int precision : new int[] {0, 3, 6, 9}) {
            column("ts" + precision, DataTypes.TIMESTAMP(precision), plain(precision));
            column("tz" + precision, DataTypes.TIMESTAMP_LTZ(precision), local(precision));
        }
        column("no", DataTypes.INT().copy(false), 7, -7);
        column("ar", DataTypes.ARRAY(DataTypes.INT()), GenericArray.of(), GenericArray.of(1, null, -1), GenericArray.of((Object) null));
        column("ad", DataTypes.ARRAY(DataTypes.STRING()), GenericArray.of(text(""), null, text("détente 水路 😀"), text("12345678")), GenericArray.of());
        column("ma", DataTypes.MAP(DataTypes.STRING().copy(false), DataTypes.BIGINT()), GenericMap.of(), GenericMap.of(text("a"), 1L, text("b"), null));
        column("ro", DataTypes.ROW(DataTypes.FIELD("n", DataTypes.INT()), DataTypes.FIELD("s", DataTypes.STRING()), DataTypes.FIELD("d", DataTypes.DECIMAL(20, 5))),
                GenericRow.of(1, text("x"), decimal("-12345678901234567890", 20, 5)), GenericRow.of(null, null, null));
        column("deep", DataTypes.ARRAY(DataTypes.ROW(DataTypes.FIELD("k", DataTypes.STRING()), DataTypes.FIELD("v", DataTypes.MAP(DataTypes.INT().copy(false), DataTypes.ARRAY(DataTypes.TIMESTAMP(6)))))),
                GenericArray.of(GenericRow.of(text("k"), GenericMap.of(1, GenericArray.of(TimestampNtz.fromMicros(-1000), null), 2, null)), null),
                GenericArray.of(GenericRow.of(null, null)));
    }

    private Rows() {}

    /** The columns of a table in this format; {@code names} none for all. */
    static Schema schema(LogFormat format) {
        Schema.Builder builder = Schema.newBuilder().column("id", DataTypes.BIGINT());
        names(format).forEach(name -> builder.column(name, TYPES.get(name)));
        return builder.build();
    }

    private static List<String> names(LogFormat format) {
        return new ArrayList<>(TYPES.keySet());
    }

    static GenericRow row(LogFormat format, int number) {
        List<String> names = names(format);
        GenericRow row = new GenericRow(1 + names.size());
        row.setField(0, (long) number);
        for (int i = 0; i < names.size(); i++) {
            Object[] values = VALUES.get(names.get(i));
            boolean mayBeNull = TYPES.get(names.get(i)).isNullable();
            boolean isNull = mayBeNull && (number == 0 || (number + i) % 9 == 0);
            row.setField(1 + i, isNull ? null : values[(number * 3 + i) % values.length]);
        }
        return row;
    }

    /** Canonical JSON of the rows {@code from..to}. */
    static List<String> texts(LogFormat format, int from, int to) {
        List<String> texts = new ArrayList<>();
        for (int number = from; number < to; number++) texts.add(Text.row(schema(format).getRowType(), row(format, number)));
        return texts;
    }
}
