//! Models as files: what a file may hold, which claims of a file are checked, and what saving does to existing files.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Float64Array, RecordBatch};
use arrow::datatypes::{DataType, Field};
use parquet::file::reader::{FileReader, SerializedFileReader};
use polars_kmeans::{AnyModel, ErrorKind, FeatureLayout, History, Init, KMeans, KMeansError, KMeansModel, Metric, Scale};

fn batch(columns: impl IntoIterator<Item = (&'static str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

fn float64(values: &[f64]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

/// A model of two columns.
fn small() -> KMeansModel {
    let rows = batch([("x", float64(&[0.0, 0.1, 5.0, 5.3, 9.0])), ("y", float64(&[1.0, 1.5, -0.1, 0.0, 7.0]))]);
    KMeans::new(2).seed(3).history(History::Full).tol(1e-3).fit_batches(&[rows], ["x", "y"], None).unwrap().model
}

/// A model of one column of lists.
fn of_lists(name: &str, d: usize) -> KMeansModel {
    let values = Float32Array::from_iter_values((0..4 * d as u32).map(|i| (i * 7919 % 101) as f32));
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let lists = FixedSizeListArray::try_new(item, d as i32, Arc::new(values), None).unwrap();
    let rows = RecordBatch::try_from_iter([(name, Arc::new(lists) as ArrayRef)]).unwrap();
    KMeans::new(2).fit_batches(&[rows], [name], None).unwrap().model
}

fn refusal(bytes: Vec<u8>) -> String {
    match KMeansModel::from_parquet(bytes) {
        Err(error @ KMeansError::InvalidModel { .. }) => error.to_string(),
        Err(other) => panic!("{other:?}"),
        Ok(model) => panic!("{model:?}"),
    }
}

/// The value of a key in the metadata of a file.
fn metadata(file: &[u8], key: &str) -> Option<String> {
    let reader = SerializedFileReader::new(bytes::Bytes::from(file.to_vec())).unwrap();
    let pairs = reader.metadata().file_metadata().key_value_metadata().unwrap().clone();
    pairs.into_iter().find(|pair| pair.key == key).and_then(|pair| pair.value)
}

/// The file with the first `old` replaced by `new`. Both have the same length.
fn with(file: &[u8], old: &str, new: &str) -> Vec<u8> {
    assert_eq!(old.len(), new.len());
    let at = file.windows(old.len()).position(|window| window == old.as_bytes()).expect("it is there");
    [&file[..at], new.as_bytes(), &file[at + old.len()..]].concat()
}

#[test]
fn files_of_format_1_are_read() {
    let columns = KMeansModel::load("tests/data/model-v1-columns.parquet").unwrap();
    assert_eq!(columns.names(), ["x", "y"]);
    assert_eq!(columns.centroid_values().unwrap()[..2], [5.233333333333333, 9.066666666666666]);
    assert_eq!((columns.sizes(), columns.n_iter()), (&[2, 2, 1][..], 1));
    assert_eq!(columns.inertia().to_bits(), 0x3F9E_B851_EB85_1EBC);
    assert_eq!(columns.history_rows()[0].inertia, Some(0.04500000000000002));
    assert_eq!((columns.settings().seed, columns.settings().weighted, columns.settings().tol), (7, true, 1e-3));
    let lists = KMeansModel::load("tests/data/model-v1-array.parquet").unwrap();
    assert_eq!(lists.layout(), &FeatureLayout::Array("e".into()));
    assert!(lists.is_f32());
    assert_eq!(lists.centroid_values().unwrap()[0], f64::from(3.333_333_3_f32));
    for model in [columns, lists] {
        let file = model.to_parquet().unwrap();
        assert!(metadata(&file, "polars-kmeans").unwrap().starts_with("{\"format\":2,"));
        assert_eq!(KMeansModel::from_parquet(file).unwrap(), model);
    }
}

#[test]
fn every_flipped_bit_is_noticed_or_does_not_matter() {
    for model in [small(), of_lists("e", 3)] {
        let file = model.to_parquet().unwrap();
        let (mut refused, mut same) = (0, 0);
        for bit in 0..file.len() * 8 {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            match KMeansModel::from_parquet(flipped) {
                Ok(other) => {
                    assert_eq!(other.to_parquet().unwrap(), file, "bit {bit} makes another model");
                    same += 1;
                }
                Err(error) => {
                    assert!(matches!(error, KMeansError::InvalidModel { .. }), "bit {bit}: {error}");
                    refused += 1;
                }
            }
        }
        println!("{} bytes: {refused} flipped bits are refused, {same} do not matter", file.len());
        assert!(refused > same);
    }
}

#[test]
fn what_a_file_asks_for_and_this_version_does_not_know_is_named() {
    let file = small().to_parquet().unwrap();
    // A value is refused before the checksum is compared: in a file of a later version, the checksum would be correct.
    for (old, new, named) in [
        ("\"euclidean\"", "\"manhattan\"", "metric"),
        ("\"k-means++\"", "\"best_of\"  ", "init"),
        ("\"raise\"", "\"drop\" ", "null_policy"),
        ("\"full\"", "\"some\"", "history"),
        ("\"weighted\"", "\"sharding\"", "unknown field \"sharding\""),
        ("\"computed\"", "\"sort_by_\"", "unknown field \"sort_by_\""),
        ("\"shift\"", "\"shaft\"", "unknown field \"shaft\""),
        ("\"format\":2", "\"format\":3", "format 3, written by \"polars-kmeans"),
        ("\"max_iter\":300", "\"max_iter\":000", "a model's metadata"),
        ("\"max_iter\":300", "\"max_iter\":  0", "max_iter"),
        ("\"tol\":0.001", "\"tol\":-.001", "a model's metadata"),
        ("\"tol\":0.001", "\"tol\":-0.01", "tol"),
        ("polars-kmeans-checksum", "polars-kmeans-checksun", "a checksum, as files of format 2 have"),
        ("\"n_iter\":", "\"n_iter\" ", "a model's metadata"),
        ("\"seed\":3", "\"seed\":4", "a model that fits its checksum"),
    ] {
        let message = refusal(with(&file, old, new));
        assert!(message.contains(named), "{new}: {message}");
    }
    // Format 1 had no checksum, and no option that this version does not know.
    let old = std::fs::read("tests/data/model-v1-columns.parquet").unwrap();
    assert!(refusal(with(&old, "\"euclidean\"", "\"manhattan\"")).contains("\"manhattan\""));
    assert!(refusal(with(&old, "\"weighted\"", "\"sharding\"")).contains("unknown field \"sharding\""));
}

#[test]
fn scaled_models_keep_factors_and_centroids_bit_for_bit() {
    let rows = batch([("x", float64(&[0.0, 0.1, 5.0, 5.3, 9.0])), ("y", float64(&[1000.0, 1500.0, -100.0, 20.0, 7000.0]))]);
    for (scale, word) in [(Scale::Standard, "standard"), (Scale::Robust, "robust"), (factor(), "given")] {
        for metric in [Metric::Euclidean, Metric::Cosine] {
            let estimator = KMeans::new(2).seed(3).scale(scale.clone()).metric(metric);
            let fit = estimator.fit_batches(std::slice::from_ref(&rows), ["x", "y"], None).unwrap();
            let file = fit.model.to_parquet().unwrap();
            let loaded = KMeansModel::from_parquet(file.clone()).unwrap();
            let (AnyModel::F64(saved), AnyModel::F64(read)) = (fit.model.as_any(), loaded.as_any()) else {
                panic!("the rows are float64")
            };
            assert_eq!((read.centroids(), read.scaling()), (saved.centroids(), saved.scaling()));
            assert_eq!(loaded.to_parquet().unwrap(), file);
            assert_eq!((loaded.scaling().unwrap().scale(), &loaded.settings().metric[..]), (word, metric.word()));
            // It takes raw rows.
            assert_eq!(loaded.predict_batch(&rows).unwrap(), fit.labels[0]);
            assert_eq!(-loaded.score_batches(std::slice::from_ref(&rows), None).unwrap(), fit.model.inertia());
            // The table has the scaled centroids, and `centroids_batch` those in the units of the columns.
            let in_units = loaded.centroids_batch().unwrap();
            for (f, factor) in read.scaling().unwrap().factors().iter().enumerate() {
                let column = in_units.column(3 + f).as_any().downcast_ref::<Float64Array>().unwrap();
                let expected: Vec<f64> = read.centroids().iter().skip(f).step_by(2).map(|c| c / factor).collect();
                assert_eq!(column.values()[..], expected);
            }
            assert!(
                refusal(with(&file, &format!("\"{word}\""), &format!("\"{}\"", "x".repeat(word.len())))).contains("of kind")
            );
        }
    }
    // A model that scales nothing has no word about it, so older versions read it.
    assert!(!metadata(&small().to_parquet().unwrap(), "polars-kmeans").unwrap().contains("scaling"));
}

fn factor() -> Scale {
    Scale::Factors([("y".to_owned(), 1e-3)].into())
}

/// Renames a column. The Parquet reader needs the name changed in the schema and in every column's path.
fn renamed(file: &[u8], old: &str, new: &str) -> Vec<u8> {
    let length = char::from(old.len() as u8);
    let (schema, path) = (|name| format!("\x18{length}{name}"), |name| format!("\x19\x18{length}{name}"));
    with(&with(file, &path(old), &path(new)), &schema(old), &schema(new))
}

#[test]
fn a_files_names_are_the_files_fault() {
    for file in [small().to_parquet().unwrap(), std::fs::read("tests/data/model-v1-columns.parquet").unwrap()] {
        assert!(refusal(renamed(&file, "y", "x")).contains("\"x\" twice"));
        // We never write text that holds a NUL.
        refusal(renamed(&file, "y", "\0"));
    }
    let rows = batch([("sizf", float64(&[0.0, 1.0]))]);
    let file = KMeans::new(1).fit_batches(&[rows], ["sizf"], None).unwrap().model.to_parquet().unwrap();
    assert!(refusal(renamed(&file, "sizf", "size")).contains("may not be named \"size\""));
    let model = small();
    let bytes = model.to_bytes().unwrap();
    assert_eq!(*KMeansModel::from_bytes(&bytes).unwrap(), model);
    let mut altered = bytes.clone();
    *altered.last_mut().unwrap() ^= 1;
    let error = KMeansModel::from_bytes(&altered).unwrap_err();
    assert!(error.to_string().contains("altered"), "it stands under the hash of one that was decoded: {error}");
    for name in ["a\0b", "size", ""] {
        let rows = batch([(name, float64(&[0.0, 1.0]))]);
        let error = KMeans::new(1).fit_batches(&[rows], [name], None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidColumn, "{error}");
    }
}

#[test]
fn long_names_and_many_features_survive() {
    for (name, d) in [("n".repeat(3_000), 2_000), ("n".repeat(100_000), 3), ("e".into(), 70_000)] {
        let model = of_lists(&name, d);
        let file = model.to_parquet().unwrap();
        assert!(KMeansModel::from_parquet(file.clone()).unwrap().to_parquet().unwrap() == file, "{d} features");
        assert!(model.to_bytes().unwrap().len() < 2 * name.len() + 8 * d + 1_000, "no name a feature");
    }
}

#[test]
fn centroids_of_any_magnitude() {
    let tiny = [2f64.powi(-450), -(2f64.powi(-451))];
    let nearly: Vec<f64> = (0..1_000).map(|i| if i % 2 == 0 { 1e-120 } else { -1e-120 * (1.0 + f64::EPSILON) }).collect();
    let given = [0.0, 0.0, 1.0, 1.0];
    for (values, k, init) in [
        (&tiny[..], 1, None),
        (&nearly, 1, None),
        (&nearly, 2, None),
        (&given, 2, Some(vec![2f64.powi(-500), 1.0])),
        (&given, 2, Some(vec![f64::from_bits(1), 2f64.powi(450)])),
        (&[0.0, 0.0], 1, Some(vec![f64::from_bits(1)])),
    ] {
        let rows = batch([("x", float64(values))]);
        let estimator = KMeans::new(k).init(init.map_or_else(Init::default, Init::Given));
        let fit = estimator.fit_batches(std::slice::from_ref(&rows), ["x"], None).unwrap();
        let model = KMeansModel::from_parquet(fit.model.to_parquet().unwrap()).unwrap();
        assert_eq!(*KMeansModel::from_bytes(&fit.model.to_bytes().unwrap()).unwrap(), fit.model);
        assert_eq!(model.predict_batch(&rows).unwrap(), fit.labels[0]);
        assert_eq!(model.transform_batch(&rows).unwrap(), fit.model.transform_batch(&rows).unwrap());
        assert_eq!(-model.score_batches(&[rows], None).unwrap(), fit.model.inertia());
    }
    let too_large = KMeans::new(1).init(Init::Given(vec![2f64.powi(451)]));
    let error = too_large.fit_batches(&[batch([("x", float64(&[1.0]))])], ["x"], None).unwrap_err();
    assert!(matches!(error, KMeansError::MagnitudeOutOfRange { .. }), "{error}");
}

/// The names of the files in a folder.
#[cfg(unix)]
mod on_disk {
    use std::fs::{self, File, Permissions};
    use std::io::{Seek, SeekFrom, Write};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::{KMeansError, KMeansModel, small};

    fn file_error(result: Result<impl std::fmt::Debug, KMeansError>) -> String {
        match result {
            Err(error @ KMeansError::File { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let path = std::ffi::CString::new(pipe.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends with a NUL.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        file_error(KMeansModel::load(&pipe));
        file_error(small().save(&pipe));
    }

    #[test]
    fn links_are_followed_to_where_there_is_nothing_yet() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("models")).unwrap();
        symlink("models/latest.parquet", at("first")).unwrap();
        symlink("first", at("second")).unwrap();
        small().save(at("second")).unwrap();
        assert!(at("first").is_symlink() && at("second").is_symlink());
        assert!(at("models/latest.parquet").metadata().unwrap().is_file());
        assert_eq!(KMeansModel::load(at("second")).unwrap().to_parquet(), small().to_parquet());
        small().save(at("second")).unwrap();
        assert!(at("first").is_symlink() && at("second").is_symlink());
        symlink("missing/model.parquet", at("nowhere")).unwrap();
        file_error(small().save(at("nowhere")));
        symlink("circle", at("circle")).unwrap();
        file_error(small().save(at("circle")));
        assert_eq!(fs::read_dir(at("models")).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn a_file_that_nobody_may_write_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.parquet");
        fs::write(&path, b"mine").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        assert!(file_error(small().save(&path)).contains("permission denied"));
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        small().save(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }

    /// The most bytes of memory that this process has had at any time.
    fn peak() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    /// A file of 2 GiB that takes a few kilobytes on the disk.
    fn sparse(path: &Path, first: &[u8], hole: u64, last: &[u8]) {
        let mut file = File::create(path).unwrap();
        file.write_all(first).unwrap();
        file.seek(SeekFrom::Current(i64::try_from(hole).unwrap())).unwrap();
        file.write_all(last).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_hole_costs_no_memory() {
        const HOLE: u64 = 2 << 30;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.parquet");
        let model = small().to_parquet().unwrap();
        let end = model.len() - 8;
        let footer = u32::from_le_bytes(model[end..end + 4].try_into().unwrap()) as usize;
        let (body, footer) = (&model[..end - footer], &model[end - footer..]);
        let whole = u32::try_from(HOLE).unwrap().to_le_bytes();
        let marked = |length: [u8; 4]| [&length[..], b"PAR1"].concat();
        // The footer claims a part as long as the hole: nothing first, then 2^31 schema elements, 2^31 pairs, and a key of 2^31
        // bytes.
        let starts: [&[u8]; 4] = [
            &[],
            &[0x15, 2, 0x29, 0xFC, 0x80, 0x80, 0x80, 0x80, 0x08],
            &[0x59, 0xFC, 0x80, 0x80, 0x80, 0x80, 0x08],
            &[0x59, 0x1C, 0x18, 0x80, 0x80, 0x80, 0x80, 0x08],
        ];
        let before = peak();
        // A hole between the columns and the footer is never read.
        sparse(&path, body, HOLE, footer);
        assert_eq!(KMeansModel::load(&path).unwrap().to_parquet().unwrap(), model);
        for start in starts {
            sparse(&path, &[b"PAR1", start].concat(), HOLE - start.len() as u64, &marked(whole));
            assert!(matches!(KMeansModel::load(&path), Err(KMeansError::InvalidModel { .. })));
        }
        sparse(&path, b"PAR1", HOLE, &marked([0; 4]));
        assert!(matches!(KMeansModel::load(&path), Err(KMeansError::InvalidModel { .. })));
        assert!(peak() - before < 16 << 20, "{} MiB more", (peak() - before) >> 20);
    }
}
