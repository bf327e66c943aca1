//! TPC-H tables as a source of rows, made by the crate `tpchgen`.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Date32Builder, Decimal128Builder, Int32Builder, Int64Builder, RecordBatch,
    StringBuilder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use tpchgen::decimal::TPCHDecimal;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};

/// Rows of a batch that the generator makes.
pub const BATCH_ROWS: usize = 8192;

/// Batches in the order of the table, at most [`BATCH_ROWS`] rows each.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// A TPC-H table at a scale factor: 1.0 is six million line items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Source {
    /// The table.
    pub table: Table,
    /// The scale factor, above 0.
    pub scale: f64,
}

/// A table of the benchmark; columns, types and order are those of its specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// 5 rows.
    Region,
    /// 25 rows.
    Nation,
    /// 10,000 rows at scale 1.
    Supplier,
    /// 150,000 rows at scale 1.
    Customer,
    /// 200,000 rows at scale 1.
    Part,
    /// 800,000 rows at scale 1.
    PartSupp,
    /// 1,500,000 rows at scale 1.
    Orders,
    /// About 6,000,000 rows at scale 1, with one more column at the end: `l_shipyear STRING`.
    LineItem,
}

impl Table {
    const NAMES: [(&'static str, Self); 8] = [
        ("region", Self::Region),
        ("nation", Self::Nation),
        ("supplier", Self::Supplier),
        ("customer", Self::Customer),
        ("part", Self::Part),
        ("partsupp", Self::PartSupp),
        ("orders", Self::Orders),
        ("lineitem", Self::LineItem),
    ];

    /// The table of this name, in lower case as in the specification.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, table)| *table)
    }

    /// All names, for messages.
    pub fn names() -> String {
        Self::NAMES.map(|(name, _)| name).join(", ")
    }
}

impl Source {
    /// The columns.
    pub fn schema(&self) -> SchemaRef {
        let builders = self.table.builders();
        let fields: Vec<_> = builders.iter().map(Column::field).collect();
        Arc::new(Schema::new(fields))
    }

    /// The rows. The same source gives the same rows in the same batches each time.
    pub fn batches(&self) -> Batches {
        let (scale, table) = (self.scale, self.table);
        match table {
            Table::Region => batches(table, RegionGenerator::new(scale, 1, 1), |c, r| {
                c.int(0, r.r_regionkey)
                    .text(1, &r.r_name)
                    .text(2, &r.r_comment);
            }),
            Table::Nation => batches(table, NationGenerator::new(scale, 1, 1), |c, r| {
                c.int(0, r.n_nationkey)
                    .text(1, &r.n_name)
                    .int(2, r.n_regionkey)
                    .text(3, &r.n_comment);
            }),
            Table::Supplier => batches(table, SupplierGenerator::new(scale, 1, 1), |c, r| {
                c.int(0, r.s_suppkey)
                    .text(1, &r.s_name)
                    .text(2, &r.s_address)
                    .int(3, r.s_nationkey);
                c.text(4, &r.s_phone)
                    .decimal(5, r.s_acctbal)
                    .text(6, &r.s_comment);
            }),
            Table::Customer => batches(table, CustomerGenerator::new(scale, 1, 1), |c, r| {
                c.int(0, r.c_custkey)
                    .text(1, &r.c_name)
                    .text(2, &r.c_address)
                    .int(3, r.c_nationkey);
                c.text(4, &r.c_phone)
                    .decimal(5, r.c_acctbal)
                    .text(6, &r.c_mktsegment);
                c.text(7, &r.c_comment);
            }),
            Table::Part => batches(table, PartGenerator::new(scale, 1, 1), |c, r| {
                c.int(0, r.p_partkey)
                    .text(1, &r.p_name)
                    .text(2, &r.p_mfgr)
                    .text(3, &r.p_brand);
                c.text(4, &r.p_type)
                    .small(5, r.p_size)
                    .text(6, &r.p_container);
                c.decimal(7, r.p_retailprice).text(8, &r.p_comment);
            }),
            Table::PartSupp => batches(table, PartSuppGenerator::new(scale, 1, 1), |c, r| {
                c.int(0, r.ps_partkey)
                    .int(1, r.ps_suppkey)
                    .small(2, r.ps_availqty);
                c.decimal(3, r.ps_supplycost).text(4, &r.ps_comment);
            }),
            Table::Orders => batches(table, OrderGenerator::new(scale, 1, 1), |c, r| {
                c.int(0, r.o_orderkey)
                    .int(1, r.o_custkey)
                    .text(2, &r.o_orderstatus);
                c.decimal(3, r.o_totalprice)
                    .date(4, r.o_orderdate.to_unix_epoch());
                c.text(5, &r.o_orderpriority)
                    .text(6, &r.o_clerk)
                    .small(7, r.o_shippriority);
                c.text(8, &r.o_comment);
            }),
            Table::LineItem => batches(table, LineItemGenerator::new(scale, 1, 1), |c, r| {
                c.int(0, r.l_orderkey)
                    .int(1, r.l_partkey)
                    .int(2, r.l_suppkey)
                    .small(3, r.l_linenumber);
                c.decimal(4, TPCHDecimal::new(r.l_quantity * 100))
                    .decimal(5, r.l_extendedprice);
                c.decimal(6, r.l_discount)
                    .decimal(7, r.l_tax)
                    .text(8, &r.l_returnflag);
                c.text(9, &r.l_linestatus)
                    .date(10, r.l_shipdate.to_unix_epoch());
                c.date(11, r.l_commitdate.to_unix_epoch())
                    .date(12, r.l_receiptdate.to_unix_epoch());
                c.text(13, &r.l_shipinstruct)
                    .text(14, &r.l_shipmode)
                    .text(15, &r.l_comment);
                c.year(16, &r.l_shipdate);
            }),
        }
    }
}

/// What a column is made of.
#[derive(Debug)]
enum Values {
    Int(Int64Builder),
    Small(Int32Builder),
    Decimal(Decimal128Builder),
    Date(Date32Builder),
    Text(StringBuilder),
}

/// A column that is being filled.
#[derive(Debug)]
struct Column {
    name: &'static str,
    values: Values,
}

/// All columns of a batch.
struct Columns(Vec<Column>);

impl Column {
    fn field(&self) -> Field {
        let data_type = match self.values {
            Values::Int(_) => DataType::Int64,
            Values::Small(_) => DataType::Int32,
            Values::Decimal(_) => DataType::Decimal128(15, 2),
            Values::Date(_) => DataType::Date32,
            Values::Text(_) => DataType::Utf8,
        };
        Field::new(self.name, data_type, false)
    }

    fn finish(&mut self) -> ArrayRef {
        match &mut self.values {
            Values::Int(builder) => Arc::new(builder.finish()),
            Values::Small(builder) => Arc::new(builder.finish()),
            Values::Decimal(builder) => Arc::new(builder.finish()),
            Values::Date(builder) => Arc::new(builder.finish()),
            Values::Text(builder) => Arc::new(builder.finish()),
        }
    }
}

impl Columns {
    fn int(&mut self, index: usize, value: i64) -> &mut Self {
        if let Some(Column {
            values: Values::Int(builder),
            ..
        }) = self.0.get_mut(index)
        {
            builder.append_value(value);
        }
        self
    }

    fn small(&mut self, index: usize, value: i32) -> &mut Self {
        if let Some(Column {
            values: Values::Small(builder),
            ..
        }) = self.0.get_mut(index)
        {
            builder.append_value(value);
        }
        self
    }

    fn decimal(&mut self, index: usize, value: TPCHDecimal) -> &mut Self {
        if let Some(Column {
            values: Values::Decimal(builder),
            ..
        }) = self.0.get_mut(index)
        {
            builder.append_value(i128::from(value.into_inner()));
        }
        self
    }

    fn date(&mut self, index: usize, days: i32) -> &mut Self {
        if let Some(Column {
            values: Values::Date(builder),
            ..
        }) = self.0.get_mut(index)
        {
            builder.append_value(days);
        }
        self
    }

    fn text(&mut self, index: usize, value: &impl std::fmt::Display) -> &mut Self {
        if let Some(Column {
            values: Values::Text(builder),
            ..
        }) = self.0.get_mut(index)
        {
            let written = write!(builder, "{value}");
            debug_assert!(written.is_ok(), "writing to memory does not fail");
            builder.append_value("");
        }
        self
    }

    /// The year of a date, which displays as `YYYY-MM-DD`.
    fn year(&mut self, index: usize, date: &impl std::fmt::Display) -> &mut Self {
        let text = date.to_string();
        let year = text.split('-').next().unwrap_or_default().to_owned();
        self.text(index, &year)
    }
}

impl Table {
    fn builders(self) -> Vec<Column> {
        let columns: &[(&'static str, char)] = match self {
            Self::Region => &[("r_regionkey", 'l'), ("r_name", 't'), ("r_comment", 't')],
            Self::Nation => &[
                ("n_nationkey", 'l'),
                ("n_name", 't'),
                ("n_regionkey", 'l'),
                ("n_comment", 't'),
            ],
            Self::Supplier => &[
                ("s_suppkey", 'l'),
                ("s_name", 't'),
                ("s_address", 't'),
                ("s_nationkey", 'l'),
                ("s_phone", 't'),
                ("s_acctbal", 'd'),
                ("s_comment", 't'),
            ],
            Self::Customer => &[
                ("c_custkey", 'l'),
                ("c_name", 't'),
                ("c_address", 't'),
                ("c_nationkey", 'l'),
                ("c_phone", 't'),
                ("c_acctbal", 'd'),
                ("c_mktsegment", 't'),
                ("c_comment", 't'),
            ],
            Self::Part => &[
                ("p_partkey", 'l'),
                ("p_name", 't'),
                ("p_mfgr", 't'),
                ("p_brand", 't'),
                ("p_type", 't'),
                ("p_size", 'i'),
                ("p_container", 't'),
                ("p_retailprice", 'd'),
                ("p_comment", 't'),
            ],
            Self::PartSupp => &[
                ("ps_partkey", 'l'),
                ("ps_suppkey", 'l'),
                ("ps_availqty", 'i'),
                ("ps_supplycost", 'd'),
                ("ps_comment", 't'),
            ],
            Self::Orders => &[
                ("o_orderkey", 'l'),
                ("o_custkey", 'l'),
                ("o_orderstatus", 't'),
                ("o_totalprice", 'd'),
                ("o_orderdate", 'y'),
                ("o_orderpriority", 't'),
                ("o_clerk", 't'),
                ("o_shippriority", 'i'),
                ("o_comment", 't'),
            ],
            Self::LineItem => &[
                ("l_orderkey", 'l'),
                ("l_partkey", 'l'),
                ("l_suppkey", 'l'),
                ("l_linenumber", 'i'),
                ("l_quantity", 'd'),
                ("l_extendedprice", 'd'),
                ("l_discount", 'd'),
                ("l_tax", 'd'),
                ("l_returnflag", 't'),
                ("l_linestatus", 't'),
                ("l_shipdate", 'y'),
                ("l_commitdate", 'y'),
                ("l_receiptdate", 'y'),
                ("l_shipinstruct", 't'),
                ("l_shipmode", 't'),
                ("l_comment", 't'),
                ("l_shipyear", 't'),
            ],
        };
        columns
            .iter()
            .map(|(name, kind)| Column {
                name,
                values: Values::of(*kind),
            })
            .collect()
    }
}

impl Values {
    fn of(kind: char) -> Self {
        match kind {
            'l' => Self::Int(Int64Builder::new()),
            'i' => Self::Small(Int32Builder::new()),
            'd' => {
                Self::Decimal(Decimal128Builder::new().with_data_type(DataType::Decimal128(15, 2)))
            }
            'y' => Self::Date(Date32Builder::new()),
            _ => Self::Text(StringBuilder::new()),
        }
    }
}

fn batches<G>(table: Table, rows: G, add: fn(&mut Columns, G::Item)) -> Batches
where
    G: IntoIterator,
    G::IntoIter: Send + 'static,
    G::Item: 'static,
{
    let mut rows = rows.into_iter();
    Box::new(std::iter::from_fn(move || {
        let mut columns = Columns(table.builders());
        let mut count = 0;
        for row in rows.by_ref().take(BATCH_ROWS) {
            add(&mut columns, row);
            count += 1;
        }
        if count == 0 {
            return None;
        }
        let fields: Vec<_> = columns.0.iter().map(Column::field).collect();
        let arrays = columns.0.iter_mut().map(Column::finish).collect();
        Some(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::AsArray;
    use arrow::datatypes::{Date32Type, Decimal128Type, Int64Type};

    #[test]
    fn every_table_fills_every_column_of_every_row() {
        for (name, table) in Table::NAMES {
            let source = Source {
                table,
                scale: 0.001,
            };
            let mut rows = 0;
            for batch in source.batches() {
                let batch = batch.unwrap();
                assert_eq!(batch.schema(), source.schema(), "{name}");
                rows += batch.num_rows();
            }
            assert!(rows > 0, "{name}");
        }
    }

    #[test]
    fn line_items_are_those_of_the_specification() {
        let source = Source {
            table: Table::LineItem,
            scale: 0.001,
        };
        let batch = source.batches().next().unwrap().unwrap();
        // The first line of lineitem.tbl: 1|156|4|1|17|...|0.04|0.02|N|O|1996-03-13|...
        assert_eq!(batch.column(0).as_primitive::<Int64Type>().value(0), 1);
        assert_eq!(
            batch.column(4).as_primitive::<Decimal128Type>().value(0),
            1700
        );
        assert_eq!(batch.column(6).as_primitive::<Decimal128Type>().value(0), 4);
        assert_eq!(batch.column(10).as_primitive::<Date32Type>().value(0), 9568);
        assert_eq!(batch.column(16).as_string::<i32>().value(0), "1996");
    }

    #[test]
    fn the_same_source_gives_the_same_rows_again() {
        let source = Source {
            table: Table::Orders,
            scale: 0.001,
        };
        let first: Vec<_> = source.batches().map(Result::unwrap).collect();
        let second: Vec<_> = source.batches().map(Result::unwrap).collect();
        assert_eq!(first, second);
    }
}
