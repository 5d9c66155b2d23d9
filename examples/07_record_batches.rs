//! Without Polars: arrow-rs record batches in, labels out.
//!
//! `cargo run --no-default-features --features arrow --example 07_record_batches`

use std::error::Error;
use std::sync::Arc;

use arrow::array::{Float32Array, RecordBatch, StringArray};
use polars_kmeans::{KMeans, NullPolicy};

fn batch(station: &[&str], temperature: &[Option<f32>], humidity: &[f32]) -> Result<RecordBatch, Box<dyn Error>> {
    let station = Arc::new(StringArray::from(station.to_vec()));
    let temperature = Arc::new(Float32Array::from(temperature.to_vec()));
    let humidity = Arc::new(Float32Array::from(humidity.to_vec()));
    // (name, array, whether it may hold nulls)
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("station", station as _, false),
        ("temperature", temperature as _, true),
        ("humidity", humidity as _, false),
    ])?)
}

fn main() -> Result<(), Box<dyn Error>> {
    // Batches as a reader yields them. They are taken as one table, and their float arrays are not copied.
    let batches = [
        batch(&["fjord", "dune", "fjord"], &[Some(4.0), Some(31.0), Some(5.5)], &[80.0, 20.0, 84.0])?,
        batch(&["dune", "fjord"], &[Some(33.5), None], &[15.0, 79.0])?,
        batch(&["dune"], &[Some(30.0)], &[22.0])?,
    ];
    let kmeans = KMeans::new(2).seed(1).null_policy(NullPolicy::Skip);
    let fit = kmeans.fit_batches(&batches, ["temperature", "humidity"], None)?;

    // One array of labels per batch. A label is null where a value was missing.
    for (batch, labels) in batches.iter().zip(&fit.labels) {
        assert_eq!(labels.len(), batch.num_rows());
        println!("{:?}", labels.iter().collect::<Vec<_>>());
    }
    let [fjord, dune] = [fit.labels[0].value(0), fit.labels[0].value(1)];
    assert_ne!(fjord, dune);
    assert_eq!(fit.labels[0].value(2), fjord);
    assert_eq!(fit.labels[1].iter().collect::<Vec<_>>(), [Some(dune), None]);
    assert_eq!(fit.labels[2].value(0), dune);

    // The centroids come as a batch too, or as plain numbers: float64, row-major.
    let centroids = fit.model.centroids_batch()?;
    let schema = centroids.schema();
    println!("{:?}", schema.fields().iter().map(|field| field.name()).collect::<Vec<_>>());
    println!("sizes {:?}, centroids {:?}", fit.model.sizes(), fit.model.centroid_values()?);
    assert_eq!(centroids.num_rows(), 2);

    // New batches of a stream are labelled one by one. It changes no bit how a table is cut into batches.
    assert_eq!(fit.model.predict_batch(&batches[1])?, fit.labels[1]);
    let whole = arrow::compute::concat_batches(&batches[0].schema(), &batches)?;
    assert_eq!(kmeans.fit_batches(&[whole], ["temperature", "humidity"], None)?.model.centroids_batch()?, centroids);
    Ok(())
}
