//! Keys of every type.

use super::*;

/// Values of a key column that are told apart, in an order of their own.
fn key_values(data_type: &ArrowType) -> Option<ArrayRef> {
    let numbers = || [5_i32, -3, 0, 127, -128, 1, -1, 100];
    Some(match data_type {
        ArrowType::Boolean => Arc::new(BooleanArray::from(vec![true, false])),
        ArrowType::Int8 => Arc::new(Int8Array::from_iter_values(numbers().map(|n| n as i8))),
        ArrowType::Int16 => {
            let ends = [i16::MAX, i16::MIN];
            let numbers = numbers().into_iter().map(|n| n as i16).chain(ends);
            Arc::new(Int16Array::from_iter_values(numbers))
        }
        ArrowType::Int32 => {
            let ends = [i32::MAX, i32::MIN];
            Arc::new(Int32Array::from_iter_values(
                numbers().into_iter().chain(ends),
            ))
        }
        ArrowType::Int64 => {
            let ends = [i64::MAX, i64::MIN];
            let numbers = numbers().into_iter().map(i64::from).chain(ends);
            Arc::new(Int64Array::from_iter_values(numbers))
        }
        ArrowType::Float32 => Arc::new(Float32Array::from(vec![
            1.5,
            f32::NAN,
            -0.0,
            0.0,
            f32::NEG_INFINITY,
            f32::INFINITY,
            -1e30,
        ])),
        ArrowType::Float64 => Arc::new(Float64Array::from(vec![
            f64::NAN,
            1.5,
            0.0,
            -0.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e-300,
        ])),
        ArrowType::Decimal128(precision, scale) => {
            let most = 10_i128.pow(u32::from(*precision)) - 1;
            let numbers = numbers().into_iter().map(i128::from).chain([most, -most]);
            let array = Decimal128Array::from_iter_values(numbers);
            Arc::new(array.with_precision_and_scale(*precision, *scale).unwrap())
        }
        ArrowType::Utf8 => Arc::new(StringArray::from(vec![
            "b",
            "",
            "ab",
            "ä",
            "z",
            "a",
            "\u{ffff}",
            "\u{10000}",
            "longer than eight bytes",
        ])),
        ArrowType::Binary => Arc::new(BinaryArray::from(vec![
            &b"b"[..],
            b"",
            b"\xff",
            b"\x00",
            b"\x7f\x80",
            b"\x7f",
            b"longer than eight bytes",
        ])),
        ArrowType::Date32 => Arc::new(Date32Array::from_iter_values(numbers())),
        ArrowType::Time32(TimeUnit::Millisecond) => {
            Arc::new(Time32MillisecondArray::from_iter_values([
                5, 0, 86_399_999, 1, 1000,
            ]))
        }
        ArrowType::Timestamp(unit, zone) => {
            let numbers = numbers().into_iter().map(|n| i64::from(n) * 1_000_000_007);
            match unit {
                TimeUnit::Millisecond => Arc::new(
                    TimestampMillisecondArray::from_iter_values(numbers)
                        .with_timezone_opt(zone.clone()),
                ),
                TimeUnit::Microsecond => Arc::new(
                    TimestampMicrosecondArray::from_iter_values(numbers)
                        .with_timezone_opt(zone.clone()),
                ),
                TimeUnit::Nanosecond => Arc::new(
                    TimestampNanosecondArray::from_iter_values(numbers)
                        .with_timezone_opt(zone.clone()),
                ),
                TimeUnit::Second => return None,
            }
        }
        _ => return None,
    })
}

#[tokio::test]
async fn every_type_of_key_is_sorted_and_found_again() {
    for text in [
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INT",
        "BIGINT",
        "FLOAT",
        "DOUBLE",
        "DECIMAL(9, 2)",
        "DECIMAL(18, 2)",
        "DECIMAL(38, 4)",
        "CHAR(30)",
        "VARCHAR(30)",
        "STRING",
        "BINARY(30)",
        "BYTES",
        "DATE",
        "TIME(3)",
        "TIMESTAMP(3)",
        "TIMESTAMP(6)",
        "TIMESTAMP(9)",
        "TIMESTAMP(3) WITH LOCAL TIME ZONE",
        "TIMESTAMP(9) WITH LOCAL TIME ZONE",
    ] {
        let mut fixture = Fixture::of(schema_of(&format!("{text} NOT NULL"), &[])).await;
        let arrow = fixture.schema.arrow_schema();
        let keys = key_values(arrow.field(0).data_type()).unwrap();
        let rows = keys.len();
        let (none, texts) = (vec![None::<i32>; rows], vec![None::<&str>; rows]);
        let batch_of = |a: i32| {
            let columns: Vec<ArrayRef> = vec![
                Arc::clone(&keys),
                Arc::new(Int32Array::from(vec![a; rows])),
                Arc::new(Int32Array::from(none.clone())),
                Arc::new(StringArray::from(texts.clone())),
            ];
            RecordBatch::try_new(Arc::clone(&arrow), columns).unwrap()
        };
        for round in [1, 2] {
            let mut writer = fixture.writer();
            for a in [round * 10, round * 10 + 1] {
                let kinds = vec![RowKind::Insert; rows];
                writer.write(batch_of(a), &kinds).await.unwrap();
            }
            let message = writer.finish().await.unwrap();
            assert_eq!(message.new_files[0].row_count, rows as i64, "{text}");
            fixture.commit(message).await;
        }
        fixture.assert_sound().await;
        let found = read(&fixture.table).await;
        assert_eq!(found.num_rows(), rows, "{text}");
        let newest = found.column(1).as_primitive::<Int32Type>();
        assert!(newest.values().iter().all(|a| *a == 21), "{text}");
        let data_type = &fixture.schema.fields[0].data_type;
        let value = |row| Datum::from_array(found.column(0).as_ref(), row, data_type).unwrap();
        for row in 1..rows {
            let order = value(row - 1).compare(&value(row));
            assert_eq!(order, Some(std::cmp::Ordering::Less), "{text}, row {row}");
        }
    }
}

#[tokio::test]
async fn a_nan_key_of_other_bits_than_javas_is_refused() {
    let fixture = Fixture::of(schema_of("DOUBLE NOT NULL", &[])).await;
    let mut writer = fixture.writer();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Float64Array::from(vec![-f64::NAN])),
        Arc::new(Int32Array::from(vec![1])),
        Arc::new(Int32Array::from(vec![1])),
        Arc::new(StringArray::from(vec![""])),
    ];
    let batch = RecordBatch::try_new(fixture.schema.arrow_schema(), columns).unwrap();
    let refused = writer.write(batch, &[RowKind::Insert]).await;
    assert!(
        matches!(refused, Err(Error::BadValue { .. })),
        "{refused:?}"
    );
}
