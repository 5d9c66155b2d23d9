//! A child that was forked after a fit has only one thread. A fit works there, and does not wait for the other threads.

use std::time::{Duration, Instant};

use polars_kmeans::{Device, Features, KMeans, Model};

fn fit(x: &[f32]) -> (Vec<u32>, Model<f32>) {
    let fitted = KMeans::new(5).device(Device::Cpu).fit_features(&Features::from_rows(x, 2).unwrap(), None).unwrap();
    (fitted.labels, fitted.model)
}

#[test]
fn a_forked_child_works_on_its_own() {
    let x: Vec<f32> = (0..400_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32).collect();
    let (labels, model) = fit(&x);
    let predicted = model.predict(&Features::from_rows(&x, 2).unwrap()).unwrap();
    // SAFETY: the child has a copy of this thread, which holds no lock. It allocates through the C library, whose allocator
    // stays usable in a child. It ends without returning from this function.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let same = std::panic::catch_unwind(|| {
            let (again, other) = fit(&x);
            again == labels
                && other.centroids() == model.centroids()
                && other.predict(&Features::from_rows(&x, 2).unwrap()).is_ok_and(|again| again == predicted)
                && KMeans::new(5)
                    .device(Device::Cpu)
                    .threads(3)
                    .fit_features(&Features::from_rows(&x, 2).unwrap(), None)
                    .is_ok()
        });
        // SAFETY: ends the child at once. It skips the exit handlers that the parent has registered.
        unsafe { libc::_exit(if matches!(same, Ok(true)) { 0 } else { 1 }) }
    }
    assert!(child > 0, "{}", std::io::Error::last_os_error());
    let start = Instant::now();
    let mut status = 0;
    // SAFETY: waits for the child without blocking, and ends it if it takes too long.
    let ended = unsafe {
        loop {
            if libc::waitpid(child, &mut status, libc::WNOHANG) == child {
                break true;
            }
            if start.elapsed() > Duration::from_secs(60) {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, &mut status, 0);
                break false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    assert!(ended, "the child hangs");
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child's result differs: {status}");
}
