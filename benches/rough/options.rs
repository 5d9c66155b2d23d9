//! The command line.

use std::str::FromStr;

use polars_kmeans::{Device, Strategy};

use crate::kinds::Kind;

/// Most values of a table: 2 GiB.
const MOST_VALUES: usize = 1 << 29;

/// What to measure.
pub struct Options {
    pub device: Device,
    pub d: Vec<usize>,
    pub k: Vec<usize>,
    pub kinds: Vec<Kind>,
    pub rows: Option<usize>,
    pub iterations: u32,
    pub runs: u32,
    pub seconds: f64,
    pub csv: Option<String>,
    pub strategy: Strategy,
}

impl Options {
    pub fn on_gpu(&self) -> bool {
        self.device != Device::Cpu
    }

    pub fn rows_of(&self, d: usize) -> usize {
        let rows = self.rows.unwrap_or(if self.on_gpu() { 8_000_000 } else { 400_000 });
        rows.min(MOST_VALUES / d)
    }

    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            device: Device::Cpu,
            d: vec![2, 4, 8, 16, 64, 256],
            k: vec![16, 64, 512],
            kinds: Kind::ALL.to_vec(),
            rows: None,
            iterations: 0,
            runs: 0,
            seconds: f64::INFINITY,
            csv: None,
            strategy: Strategy::Default,
        };
        let mut rest = arguments;
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{argument}: expected a value"));
            match argument.as_str() {
                "--device" => options.device = value()?.parse().map_err(|error| format!("{error}"))?,
                "--d" => options.d = list(&value()?)?,
                "--k" => options.k = list(&value()?)?,
                "--kinds" => options.kinds = list(&value()?)?,
                "--rows" => options.rows = Some(one(&value()?)?),
                "--iterations" => options.iterations = one(&value()?)?,
                "--runs" => options.runs = one(&value()?)?,
                "--seconds" => options.seconds = one(&value()?)?,
                "--strategy" => options.strategy = value()?.parse().map_err(|error| format!("{error}"))?,
                "--csv" => options.csv = Some(value()?),
                "--quick" => (options.d, options.seconds) = (vec![4, 16, 64], 50.0),
                "--bench" => {}
                _ => return Err(format!("{argument}: unknown; the head of benches/rough/mod.rs lists the options")),
            }
        }
        let on_gpu = options.on_gpu();
        if options.iterations == 0 {
            options.iterations = if on_gpu { 12 } else { 5 };
        }
        if options.runs == 0 {
            options.runs = 3;
        }
        // Everything is compared with the blobs.
        options.kinds.retain(|kind| *kind != Kind::Blobs);
        options.kinds.insert(0, Kind::Blobs);
        Ok(options)
    }
}

fn one<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?}: not understood"))
}

fn list<T: FromStr>(text: &str) -> Result<Vec<T>, String> {
    text.split(',').map(one).collect()
}
