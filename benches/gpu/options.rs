//! The command line.

use std::path::PathBuf;

use polars_kmeans::{Device, Init, KMeansError, Strategy};

use crate::kinds::Kind;

/// Name, rows, features, clusters, iterations.
pub const SHAPES: [(&str, Shape); 10] = [
    ("lutz-k4", Shape { n: 134_217_728, d: 4, k: 4, iterations: 10 }),
    ("lutz-k64", Shape { n: 134_217_728, d: 4, k: 64, iterations: 20 }),
    ("lutz-d256", Shape { n: 2_097_152, d: 256, k: 64, iterations: 20 }),
    ("li-2-100", Shape { n: 4_000_000, d: 2, k: 100, iterations: 50 }),
    ("li-kdd", Shape { n: 494_080, d: 34, k: 32, iterations: 100 }),
    ("blog-5", Shape { n: 10_000_000, d: 2, k: 5, iterations: 100 }),
    ("blog-1000", Shape { n: 10_000_000, d: 2, k: 1_000, iterations: 20 }),
    ("kmcuda", Shape { n: 300_000, d: 408, k: 5_000, iterations: 15 }),
    ("expression", Shape { n: 10_000_000, d: 4, k: 16, iterations: 20 }),
    ("small", Shape { n: 5_000, d: 20, k: 16, iterations: 100 }),
];

#[derive(Clone, Copy)]
pub struct Shape {
    pub n: usize,
    pub d: usize,
    pub k: usize,
    pub iterations: u32,
}

/// The options of the command line.
#[derive(Default)]
pub struct Options {
    pub shapes: Vec<(String, Shape)>,
    pub strategies: Vec<Strategy>,
    /// For `--device`.
    pub devices: Vec<Device>,
    /// Names for `--json`.
    pub names: Vec<String>,
    pub limit: Option<u64>,
    pub tol_labels: f64,
    /// `None`: given rows.
    pub init: Option<Init>,
    /// The kind of the data, if it is not one of those with a flag.
    pub kind: Option<Kind>,
    /// A file of rows.
    pub table: Option<PathBuf>,
    pub flags: Vec<String>,
}

impl Options {
    pub fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag == name)
    }

    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        let mut rest = arguments;
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{argument}: expected a value"));
            let bad = |what: &str| format!("{argument}: expected {what}");
            match argument.as_str() {
                "--strategy" => match value()?.as_str() {
                    "all" => options.strategies.extend(Strategy::ALL),
                    name => options.strategies.push(name.parse().map_err(|error: KMeansError| error.to_string())?),
                },
                "--device" => {
                    options.devices.push(value()?.parse().map_err(|error: KMeansError| error.to_string())?);
                }
                "--strategies" => options.names.extend(value()?.split(',').map(String::from)),
                "--limit" => options.limit = Some(value()?.parse().map_err(|_| bad("bytes"))?),
                "--init" => options.init = Some(value()?.parse().map_err(|error: KMeansError| error.to_string())?),
                "--kind" => {
                    options.kind = Some(value()?.parse().map_err(|error| {
                        format!("{error}; it is one of {}", Kind::ALL.map(|kind| kind.to_string()).join(", "))
                    })?)
                }
                "--rows" => options.table = Some(value()?.into()),
                "--tol-labels" => options.tol_labels = value()?.parse().map_err(|_| bad("a share"))?,
                flag if flag.starts_with('-') => options.flags.push(argument),
                name => {
                    let known = SHAPES.iter().find(|(known, _)| *known == name).map(|(_, shape)| *shape);
                    let names = || SHAPES.map(|(name, _)| name).join(", ");
                    let shape = known.or_else(|| parse(name));
                    let shape =
                        shape.ok_or_else(|| format!("shape: expected NxDxKxITERATIONS or one of {}, got {name:?}", names()))?;
                    options.shapes.push((argument, shape));
                }
            }
        }
        if options.shapes.is_empty() {
            options.shapes = SHAPES.map(|(name, shape)| (name.to_string(), shape)).to_vec();
        }
        if options.names.is_empty() {
            options.names.push("default".into());
        }
        Ok(options)
    }
}

/// `10000000x4x16x20`.
fn parse(text: &str) -> Option<Shape> {
    let numbers: Vec<usize> = text.split('x').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [n, d, k, iterations] = numbers[..] else { return None };
    Some(Shape { n, d, k, iterations: u32::try_from(iterations).ok()? })
}
