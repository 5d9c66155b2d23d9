//! One fit per group: the customers of each shop are clustered on their own.

use std::error::Error;

use polars::prelude::*;
use polars_kmeans::KMeans;

fn main() -> Result<(), Box<dyn Error>> {
    let customers = df!(
        "shop" => ["Aarhus", "Bergen", "Aarhus", "Bergen", "Aarhus", "Bergen", "Aarhus", "Bergen", "Cork"],
        "visits" => [1i32, 30, 2, 28, 12, 5, 11, 6, 4],
        "spent" => [15.0, 90.0, 20.0, 95.0, 300.0, 80.0, 280.0, 70.0, 60.0],
    )?;

    let mut stacked = DataFrame::empty();
    for mut group in customers.partition_by_stable(["shop"], true)? {
        let shop = group.column("shop")?.str()?.get(0).unwrap_or("no name").to_string();
        let labels = match KMeans::new(2).seed(1).fit(&group, ["visits", "spent"]) {
            Ok(model) => {
                println!("{shop}: {}", model.centroids()?);
                model.predict(&group)?
            }
            // A shop with fewer than two different customers cannot have two clusters. Its rows get nulls.
            Err(error) if error.is_too_few() => {
                println!("{shop}: {error}");
                UInt32Chunked::full_null("cluster".into(), group.height())
            }
            Err(error) => return Err(error.into()),
        };
        group.with_column(labels.into_column())?;
        stacked = if stacked.height() == 0 { group } else { stacked.vstack(&group)? };
    }
    println!("{stacked}");

    // Labels belong to one shop: 0 and 1 of Aarhus are unrelated to 0 and 1 of Bergen.
    assert_eq!(stacked.height(), customers.height());
    let labels: Vec<Option<u32>> = stacked.column("cluster")?.u32()?.iter().collect();
    for start in [0, 4] {
        assert_eq!(labels[start], labels[start + 1]);
        assert_eq!(labels[start + 2], labels[start + 3]);
        assert_ne!(labels[start], labels[start + 2]);
    }
    assert_eq!(labels[8], None);
    Ok(())
}
