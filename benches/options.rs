//! The command line of benches that fit rows on the CPU, and the rows that it asks for.

use std::str::FromStr;

use polars_kmeans::Features;

use crate::Arguments;
use crate::data::features_of;
use crate::kinds::{Kind, generate, row_by_row};

/// `NxDxK ... --kinds blobs,uniform --iterations 15 --threads 1,2 --repeats 3 --columns --random`, and what holds without it.
#[derive(Default)]
pub struct Options {
    /// Rows, features, clusters. Empty: those of the bench.
    pub shapes: Vec<[usize; 3]>,
    pub kinds: Option<Vec<Kind>>,
    pub iterations: u32,
    /// 0: all.
    pub threads: Vec<usize>,
    pub repeats: usize,
    /// One array for each feature, else row by row.
    pub by_columns: bool,
    /// Starts at random rows.
    pub random: bool,
}

impl Options {
    pub fn parse(mut self, mut arguments: Arguments) -> Self {
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument}: expected a value"));
            match argument.as_str() {
                "--bench" => {}
                "--kinds" => self.kinds = Some(list(&value(), ',')),
                "--iterations" => self.iterations = one(&value()),
                "--threads" => self.threads = list(&value(), ','),
                "--repeats" => self.repeats = one(&value()),
                "--columns" => self.by_columns = true,
                "--random" => self.random = true,
                shape => self.shapes.push(list(shape, 'x').try_into().expect("a shape: NxDxK")),
            }
        }
        self
    }
}

fn one<T: FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text:?}: not understood"))
}

fn list<T: FromStr>(text: &str, between: char) -> Vec<T> {
    text.split(between).map(one).collect()
}

/// Rows of a kind of data.
pub struct Rows {
    pub columns: Vec<Vec<f32>>,
    /// Empty if columns are asked for.
    by_row: Vec<f32>,
}

impl Rows {
    pub fn new(kind: Kind, [n, d, _]: [usize; 3], by_columns: bool) -> Self {
        let columns = generate(kind, n, d);
        let by_row = if by_columns { Vec::new() } else { row_by_row(&columns) };
        Self { columns, by_row }
    }

    pub fn features(&self) -> Features<'_, f32> {
        if self.by_row.is_empty() {
            return features_of(&self.columns);
        }
        Features::from_rows(&self.by_row, self.columns.len()).expect("whole rows")
    }
}
