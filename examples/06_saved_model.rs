//! Save a model and load it. Other programs read the file as a Parquet table, and Python reads and writes the same files.

use std::error::Error;
use std::fs::File;

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use polars::prelude::*;
use polars_kmeans::{KMeans, KMeansModel};

fn main() -> Result<(), Box<dyn Error>> {
    let known = df!("x" => [0.0, 0.2, 5.0, 5.2, 9.0, 9.4], "y" => [1.0, 1.2, 7.0, 7.4, 2.0, 2.2])?;
    let new = df!("x" => [0.3, 8.0, 5.5], "y" => [0.7, 2.5, 6.0])?;
    let model = KMeans::new(3).seed(1).fit(&known, ["x", "y"])?;

    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.parquet");
    model.save(&path)?;
    let loaded = KMeansModel::load(&path)?;
    println!("{} bytes: {:?} clusters of {:?}", path.metadata()?.len(), loaded.n_clusters(), loaded.names());

    // The loaded model gives new rows the same labels as the fitted model. Its centroids are the same to the last bit.
    let labels: Vec<Option<u32>> = loaded.predict(&new)?.iter().collect();
    println!("labels of the new rows: {labels:?}");
    assert_eq!(labels, model.predict(&new)?.iter().collect::<Vec<_>>());
    assert_eq!(loaded.centroids()?, model.centroids()?);
    assert_eq!(loaded.settings(), model.settings());

    // Only the wall times of the iterations are not saved. So equal fits give equal files.
    assert!(model.history_rows()[0].seconds.is_some());
    assert!(loaded.history_rows()[0].seconds.is_none());
    assert_eq!(KMeans::new(3).seed(1).fit(&known, ["x", "y"])?.to_bytes()?, std::fs::read(&path)?);

    // Any Parquet reader sees the centroids as a table, and facts of the fit as JSON in the metadata.
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&path)?)?;
    let columns: Vec<&str> = reader.schema().fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(columns, ["cluster", "size", "inertia", "x", "y"]);
    let pairs = reader.metadata().file_metadata().key_value_metadata().ok_or("no metadata")?;
    let json = pairs.iter().find(|pair| pair.key == "polars-kmeans").and_then(|pair| pair.value.as_deref());
    let json: serde_json::Value = serde_json::from_str(json.ok_or("no facts in the metadata")?)?;
    println!("{}", json["parameters"]);
    assert_eq!(json["n_iter"], model.n_iter());
    assert_eq!(json["parameters"]["seed"], 1);
    Ok(())
}
