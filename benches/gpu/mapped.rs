//! Rows in a file that is mapped, as a fit of a query has them that memory may not hold. They stream through the GPU from there.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use polars_kmeans::{Engine, Features, KMeans};

/// Columns begin at multiples of so many bytes.
const PAGE: usize = 1 << 12;

/// A file without a name that is mapped.
struct Mapped {
    at: *mut libc::c_void,
    bytes: usize,
    file: File,
}

impl Mapped {
    fn new(file: File, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping of a file that nobody else has, to read.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { at, bytes, file }) }
    }

    /// Lets the system forget what it caches of the file.
    fn forget(&self) {
        // SAFETY: the calls only advise.
        unsafe {
            libc::madvise(self.at, self.bytes, libc::MADV_DONTNEED);
            libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        }
    }

    fn column<T: Engine>(&self, first: usize, n: usize) -> &[T] {
        assert!(first.is_multiple_of(PAGE) && first + n * size_of::<T>() <= self.bytes);
        // SAFETY: the values are in the mapping (asserted), which is aligned to a page, as `first` is. All bits are numbers.
        unsafe { std::slice::from_raw_parts(self.at.cast::<u8>().add(first).cast(), n) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped once and is not used any more.
        unsafe { libc::munmap(self.at, self.bytes) };
    }
}

/// The same fit of rows in memory and of rows in a mapped file of this folder, streamed through the GPU.
pub fn report<T: Engine>(columns: Vec<Vec<T>>, estimator: &KMeans, folder: &Path) -> io::Result<()> {
    let (n, bytes) = (columns[0].len(), columns.len() * columns[0].len() * size_of::<T>());
    let step = (n * size_of::<T>()).next_multiple_of(PAGE);
    let run = |name: &str, features: &Features<'_, T>| {
        let begin = Instant::now();
        let fitted = estimator.fit_features(features, None).expect("clusters");
        let whole = begin.elapsed().as_secs_f64();
        let seconds: Vec<f64> = fitted.model.history().iter().map(|row| row.seconds.unwrap_or(f64::NAN)).collect();
        let rates: Vec<String> = seconds.iter().map(|seconds| format!("{:.2}", bytes as f64 / seconds / 1e9)).collect();
        println!(
            "  {name}: fit {whole:.1} s, GB/s of rows of each iteration {}, digest {:016x}; own memory {:.2} GB, mapped {:.2} GB",
            rates.join(" "),
            super::digest(&fitted),
            super::memory("RssAnon:") / 1e9,
            super::memory("RssFile:") / 1e9,
        );
        println!("    {}", fitted.choice.reason);
    };
    run("in memory", &Features::from_columns(columns.iter().map(|column| &column[..])).expect("equal lengths"));
    let mut file = tempfile::tempfile_in(folder)?;
    let d = columns.len();
    let begin = Instant::now();
    for column in columns {
        // SAFETY: numbers are bytes.
        let values = unsafe { std::slice::from_raw_parts(column.as_ptr().cast::<u8>(), n * size_of::<T>()) };
        file.write_all(values)?;
        file.write_all(&vec![0; step - values.len()])?;
    }
    file.sync_all()?;
    println!("  written at {:.2} GB/s", bytes as f64 / begin.elapsed().as_secs_f64() / 1e9);
    let mapped = Mapped::new(file, d * step)?;
    mapped.forget();
    let begin = Instant::now();
    let sum: u64 =
        (0..mapped.bytes.min(4 << 30)).step_by(PAGE).map(|i| u64::from(mapped.column::<T>(i, 1)[0] != T::default())).sum();
    let read = mapped.bytes.min(4 << 30) as f64 / begin.elapsed().as_secs_f64() / 1e9;
    println!("  one thread reads the file at {read:.2} GB/s when it is not cached ({sum} pages)");
    mapped.forget();
    let views = (0..d).map(|f| mapped.column::<T>(f * step, n));
    run("in a mapped file, not cached at first", &Features::from_columns(views).expect("equal lengths"));
    Ok(())
}
