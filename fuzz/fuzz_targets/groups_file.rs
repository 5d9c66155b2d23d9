//! Files of models of groups of any bytes: reading gives groups or an error, and no more memory than the file is worth.
//!
//! The input is a recipe for a file: see `recipe.rs`.
#![no_main]

mod recipe;

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, Float64Array, RecordBatch};
use arrow::datatypes::Schema;
use libfuzzer_sys::arbitrary::Unstructured;
use libfuzzer_sys::{Corpus, fuzz_target};
use polars_kmeans::model::groups::{Groups, Key, Keys};
use polars_kmeans::{KMeans, KMeansModel};

fuzz_target!(
    init: {
        LazyLock::force(&FILES);
    },
    |data: &[u8]| -> Corpus {
        match recipe::file(&FILES, &mut Unstructured::new(data)) {
            Ok(bytes) => {
                check(&bytes);
                Corpus::Keep
            }
            Err(_) => Corpus::Reject,
        }
    }
);

/// Reads a file, and holds groups that come of it to their word.
fn check(bytes: &[u8]) {
    let Ok(body) = recipe::in_room(bytes, Groups::body) else { return };
    let Ok(groups) = recipe::in_room(&body, Groups::of_body) else { return };
    assert!(groups.keys.iter().all(|keys| keys.values.len() == groups.models.len()));
    assert!(groups.models.iter().flatten().all(|model| KMeansModel::from_wire(model).is_ok()));
    let again = written(&groups);
    let body = Groups::body(&again).expect("groups that were written can be read");
    assert_eq!(written(&Groups::of_body(&body).expect("and their keys too")), again);
}

fn written(groups: &Groups) -> Vec<u8> {
    groups.to_bytes(&Arc::new(Schema::empty()), &[]).expect("groups that were read can be written")
}

/// Files that the library wrote.
static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let x: ArrayRef = Arc::new(Float64Array::from(vec![0.0, 0.1, 9.0, 9.1, 5.0]));
    let rows = RecordBatch::try_from_iter([("x", x)]).expect("five rows");
    let fit = |k| KMeans::new(k).fit_batches(&[rows.clone()], ["x"], None).expect("five rows can be clustered");
    let models = [1, 2].map(|k| fit(k).model.to_saved_wire().expect("a model can be encoded"));
    let models = vec![Some(&models[0][..]), None, Some(&models[1])];
    let key = |name, dtype, of: &[&'static str], values: [Key<'static>; 3]| {
        let (of, values) = (of.to_vec(), values.to_vec());
        Keys { name, dtype, of, values }
    };
    let all = [
        key("shop", "Enum", &["a", "b"], [Key::Text("b"), Key::Null, Key::Text("a")]),
        key("n", "Int128", &[], [Key::Integer(i128::MIN), Key::Integer(0), Key::Integer(1 << 100)]),
        key("f", "Float32", &[], [Key::Float(f64::NAN), Key::Float(-0.0), Key::Null]),
        key("b", "Binary", &[], [Key::Bytes(b"\0"), Key::Bytes(b""), Key::Boolean(true)]),
    ];
    let files = (1..=all.len()).map(|n| written(&Groups { keys: all[..n].to_vec(), models: models.clone() }));
    files.collect()
});
