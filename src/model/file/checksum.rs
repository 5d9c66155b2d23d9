//! The checksum of a file. It covers all that the file says about the model, but not how Parquet encodes it.
//!
//! The hash is xxh3 with 128 bits, written as 32 hexadecimal digits. Its input is the following list. Integers are 8 bytes,
//! little-endian.
//!
//! ```text
//! length of the header in bytes, the header as it stands in the metadata
//! 0 if the features are columns of numbers, 1 if they are one column of lists; bytes per centroid value, 4 or 8; k; d
//! number of feature columns; for each: length of its name in bytes, its name
//! sizes; bits of the clusters' inertias; bits of the centroids, row by row: 4 or 8 bytes each
//! ```

use xxhash_rust::xxh3::Xxh3;

use super::super::{AnyModel, FeatureLayout, KMeansModel, Model};

/// The checksum of a model with this header text.
pub fn checksum(header: &str, model: &KMeansModel) -> String {
    let mut hash = Hash(Xxh3::new());
    hash.text(header);
    let names = model.layout().columns();
    let layout = matches!(model.layout(), FeatureLayout::Array(_));
    let width = if model.is_f32() { 4 } else { 8 };
    for number in [u64::from(layout), width, model.n_clusters() as u64, model.n_features() as u64, names.len() as u64] {
        hash.number(number);
    }
    names.iter().for_each(|name| hash.text(name));
    match model.as_any() {
        AnyModel::F32(model) => hash.numbers(model, |c| c.to_le_bytes()),
        AnyModel::F64(model) => hash.numbers(model, |c| c.to_le_bytes()),
    }
    format!("{:032x}", hash.0.digest128())
}

struct Hash(Xxh3);

impl Hash {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    fn numbers<T: Copy, const N: usize>(&mut self, model: &Model<T>, bytes: impl Fn(T) -> [u8; N]) {
        model.sizes.iter().for_each(|size| self.number(*size));
        model.inertias.iter().for_each(|inertia| self.number(inertia.to_bits()));
        model.centroids.iter().for_each(|c| self.0.update(&bytes(*c)));
    }
}
