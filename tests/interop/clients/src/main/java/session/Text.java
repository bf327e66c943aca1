package session;

import java.math.BigDecimal;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;

import org.apache.fluss.row.Decimal;
import org.apache.fluss.row.InternalArray;
import org.apache.fluss.row.InternalMap;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.row.TimestampLtz;
import org.apache.fluss.row.TimestampNtz;
import org.apache.fluss.types.ArrayType;
import org.apache.fluss.types.DataField;
import org.apache.fluss.types.DataType;
import org.apache.fluss.types.MapType;
import org.apache.fluss.types.RowType;

/** Rows as canonical JSON, by the rules of lakecheck's README. */
final class Text {
    private Text() {}

    static String row(RowType type, InternalRow row) {
        List<String> fields = new ArrayList<>();
        for (int i = 0; i < type.getFieldCount(); i++) {
            DataField field = type.getFields().get(i);
            Object value = InternalRow.createFieldGetter(field.getType(), i).getFieldOrNull(row);
            fields.add(string(field.getName()) + ":" + value(field.getType(), value));
        }
        return "{" + String.join(",", fields) + "}";
    }

    static String value(DataType type, Object value) {
        if (value == null) return "null";
        switch (type.getTypeRoot()) {
            case BOOLEAN: case TINYINT: case SMALLINT: case INTEGER: case BIGINT:
                return value.toString();
            case FLOAT: case DOUBLE:
                return number(value.toString());
            case CHAR: case STRING:
                return string(value.toString());
            case DECIMAL:
                return string(((Decimal) value).toBigDecimal().toPlainString());
            case BINARY: case BYTES:
                return string(HexFormat.of().formatHex((byte[]) value));
            case DATE:
                return string(LocalDate.ofEpochDay((Integer) value).toString());
            case TIME_WITHOUT_TIME_ZONE:
                int ms = (Integer) value;
                return string(String.format("%02d:%02d:%02d.%03d", ms / 3600000, ms / 60000 % 60, ms / 1000 % 60, ms % 1000));
            case TIMESTAMP_WITHOUT_TIME_ZONE:
                return string(instant(((TimestampNtz) value).getMillisecond(), ((TimestampNtz) value).getNanoOfMillisecond()));
            case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
                return string(instant(((TimestampLtz) value).getEpochMillisecond(), ((TimestampLtz) value).getNanoOfMillisecond()) + "Z");
            case ARRAY:
                return "[" + String.join(",", elements(((ArrayType) type).getElementType(), (InternalArray) value)) + "]";
            case MAP:
                MapType map = (MapType) type;
                List<String> keys = elements(map.getKeyType(), ((InternalMap) value).keyArray());
                List<String> values = elements(map.getValueType(), ((InternalMap) value).valueArray());
                List<String> pairs = new ArrayList<>();
                for (int i = 0; i < keys.size(); i++) pairs.add("[" + keys.get(i) + "," + values.get(i) + "]");
                Collections.sort(pairs);
                return "[" + String.join(",", pairs) + "]";
            case ROW:
                return row((RowType) type, (InternalRow) value);
            default:
                throw new IllegalArgumentException(type.asSummaryString());
        }
    }

    private static List<String> elements(DataType type, InternalArray array) {
        InternalArray.ElementGetter getter = InternalArray.createElementGetter(type);
        List<String> texts = new ArrayList<>();
        for (int i = 0; i < array.size(); i++) texts.add(value(type, getter.getElementOrNull(array, i)));
        return texts;
    }

    private static String number(String text) {
        if (text.equals("NaN") || text.endsWith("Infinity")) return string(text);
        BigDecimal number = new BigDecimal(text);
        return number.signum() == 0 ? "0" : number.stripTrailingZeros().toPlainString();
    }

    private static String instant(long millis, int nanos) {
        LocalDateTime at = LocalDateTime.ofEpochSecond(Math.floorDiv(millis, 1000L), (int) Math.floorMod(millis, 1000L) * 1_000_000 + nanos, ZoneOffset.UTC);
        return String.format("%04d-%02d-%02dT%02d:%02d:%02d.%09d",
                at.getYear(), at.getMonthValue(), at.getDayOfMonth(), at.getHour(), at.getMinute(), at.getSecond(), at.getNano());
    }

    static String string(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            switch (c) {
                case '"': out.append("\\\""); break;
                case '\\': out.append("\\\\"); break;
                case '\n': out.append("\\n"); break;
                case '\r': out.append("\\r"); break;
                case '\t': out.append("\\t"); break;
                default: out.append(c < 0x20 ? String.format("\\u%04x", (int) c) : String.valueOf(c));
            }
        }
        return out.append('"').toString();
    }
}
