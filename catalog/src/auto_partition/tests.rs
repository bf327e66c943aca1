use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::*;

fn ms(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_millisecond()
}

fn table(unit: TimeUnit, zone: &str) -> AutoPartition {
    AutoPartition {
        is_enabled: true,
        key: "dt".to_owned(),
        unit,
        format: TimeFormat::of_unit(unit),
        zone: TimeZone::get(zone).unwrap(),
        precreate: 2,
        retention: 2,
    }
}

fn partition(id: i64, time: &str, progress: Progress) -> KnownPartition {
    KnownPartition {
        id: PartitionId(id),
        name: time.to_owned(),
        time: time.to_owned(),
        progress,
    }
}

fn create(now: &str, table: &AutoPartition) -> Vec<String> {
    plan(ms(now), table, 1, &[]).create
}

#[test]
fn partitions_are_created_ahead_in_each_unit() {
    let now = "2024-12-31T23:30:00Z";
    assert_eq!(create(now, &table(TimeUnit::Year, "UTC")), ["2024", "2025"]);
    assert_eq!(
        create(now, &table(TimeUnit::Quarter, "UTC")),
        ["20244", "20251"]
    );
    assert_eq!(
        create(now, &table(TimeUnit::Month, "UTC")),
        ["202412", "202501"]
    );
    assert_eq!(
        create(now, &table(TimeUnit::Day, "UTC")),
        ["20241231", "20250101"]
    );
    assert_eq!(
        create(now, &table(TimeUnit::Hour, "UTC")),
        ["2024123123", "2025010100"]
    );
}

#[test]
fn days_begin_in_the_tables_zone() {
    let now = "2024-02-28T20:00:00Z";
    assert_eq!(
        create(now, &table(TimeUnit::Day, "Asia/Shanghai")),
        ["20240229", "20240301"]
    );
    assert_eq!(
        create(now, &table(TimeUnit::Day, "America/New_York")),
        ["20240228", "20240229"]
    );
}

/// The host's zone plays no part: only the table's is asked.
#[test]
fn fc_029_the_day_is_the_one_of_the_configured_zone() {
    let now = "2026-03-01T20:00:00Z";
    assert_eq!(create(now, &table(TimeUnit::Day, "UTC"))[0], "20260301");
    assert_eq!(
        create(now, &table(TimeUnit::Day, "Asia/Shanghai"))[0],
        "20260302"
    );
}

#[test]
fn a_lost_hour_of_daylight_saving_makes_no_gap() {
    let now = "2024-03-31T00:30:00Z";
    assert_eq!(
        create(now, &table(TimeUnit::Hour, "Europe/Berlin")),
        ["2024033101", "2024033103"]
    );
}

#[test]
fn what_exists_is_not_created_again() {
    let known = [partition(1, "20240101", Progress::NoLake)];
    let plan = plan(
        ms("2024-01-01T10:00:00Z"),
        &table(TimeUnit::Day, "UTC"),
        1,
        &known,
    );
    assert_eq!(plan.create, ["20240102"]);
}

#[test]
fn old_partitions_go_oldest_first_and_only_when_wholly_in_the_lake() {
    let end = LogOffset(10);
    let complete = Progress::Buckets(vec![(Some(end), end), (None, LogOffset(0))]);
    let behind = Progress::Buckets(vec![(Some(end), end), (Some(LogOffset(9)), end)]);
    let untouched = Progress::Buckets(vec![(None, end)]);
    let known = [
        partition(1, "20240106", Progress::NoLake),
        partition(2, "20240105", complete),
        partition(3, "20240104", behind),
        partition(4, "20240103", Progress::Unknown),
        partition(5, "20240102", untouched),
        partition(6, "20240108", Progress::NoLake),
        partition(7, "holiday", Progress::NoLake),
        partition(8, "20231399", Progress::NoLake),
        partition(9, "__historical__", Progress::NoLake),
    ];
    let plan = plan(
        ms("2024-01-10T10:00:00Z"),
        &table(TimeUnit::Day, "UTC"),
        1,
        &known,
    );
    assert_eq!(plan.drop, [PartitionId(2), PartitionId(1)]);
    assert_eq!(plan.waiting, 3);
}

#[test]
fn negative_retention_keeps_everything_and_disabled_does_nothing() {
    let known = [partition(1, "20000101", Progress::NoLake)];
    let mut table = table(TimeUnit::Day, "UTC");
    table.retention = -1;
    let now = ms("2024-01-10T10:00:00Z");
    assert_eq!(plan(now, &table, 1, &known).drop, []);
    table.is_enabled = false;
    table.retention = 1;
    assert_eq!(plan(now, &table, 1, &known), Plan::default());
}

#[test]
fn several_partition_columns_create_nothing_ahead() {
    let plan = plan(
        ms("2024-01-10T10:00:00Z"),
        &table(TimeUnit::Day, "UTC"),
        2,
        &[],
    );
    assert_eq!(plan.create, Vec::<String>::new());
}

#[test]
fn a_plan_is_bounded() {
    let partitions: Vec<_> = (0..500)
        .map(|id| partition(id, &format!("{:04}", 1000 + id), Progress::NoLake))
        .collect();
    let mut table = table(TimeUnit::Year, "UTC");
    table.precreate = 10_000;
    let plan = plan(ms("2024-01-10T10:00:00Z"), &table, 1, &partitions);
    assert_eq!(
        (plan.create.len(), plan.drop.len()),
        (MAX_CHANGES, MAX_CHANGES)
    );
}

#[test]
fn more_partitions_ahead_than_one_plan_makes_come_with_the_next_one() {
    let now = ms("2024-01-10T10:00:00Z");
    let mut table = table(TimeUnit::Day, "UTC");
    table.precreate = 150;
    let mut known = Vec::new();
    let mut plans = Vec::new();
    for _ in 0..3 {
        let plan = plan(now, &table, 1, &known);
        let made = plan.create.iter().zip(1..);
        known.extend(made.map(|(name, id)| partition(id, name, Progress::NoLake)));
        plans.push(plan.create.len());
    }
    assert_eq!(plans, [100, 50, 0]);
    assert_eq!(known.last().unwrap().name, "20240607");
}

#[test]
fn formats_are_read_written_and_refused_with_a_reason() {
    let parse = |pattern: &str| TimeFormat::parse(pattern, TimeUnit::Day);
    for pattern in ["yyyyMMdd", "yyyy-MM-dd", "uuuu_MM_dd", "'d'yyyyMMdd"] {
        let format = parse(pattern).unwrap();
        let again = TimeFormat::parse(&format.pattern(), TimeUnit::Day).unwrap();
        assert_eq!(again, format);
        let time = Timestamp::from_millisecond(ms("2024-02-29T00:00:00Z")).unwrap();
        let text = format.write(&time.to_zoned(TimeZone::UTC));
        assert!(format.fits(&text), "{pattern} {text}");
    }
    for pattern in [
        "",
        "yyyyMM",
        "MMddyyyy",
        "yyMMdd",
        "yyyy/MM/dd",
        "yyyyMMdd[HH]",
        "yyyyMMddx",
        "'a",
        "yyyyMMddHH",
    ] {
        assert!(parse(pattern).is_err(), "{pattern}");
    }
    let format = parse("yyyy-MM-dd").unwrap();
    for text in [
        "2024-02-30",
        "2024-2-3",
        "20240203",
        "2024-02-03x",
        "",
        "2024-13-01",
        "+024-01-01",
    ] {
        assert!(!format.fits(text), "{text}");
    }
}
