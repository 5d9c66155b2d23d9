//! The GPU that is current on a caller's thread. Other libraries rely on it: torch's `device="cuda"` is the current one.

use std::cell::Cell;
use std::ptr;

use cudarc::driver::{result, sys};

use super::probe;

#[derive(Clone, Copy)]
enum Before {
    Outside,
    /// Nothing is current, because the driver has not started. If it starts, the context is kept before ours is made current.
    Wanted,
    Kept(sys::CUcontext),
}

thread_local! {
    static BEFORE: Cell<Before> = const { Cell::new(Before::Outside) };
}

fn current() -> sys::CUcontext {
    result::ctx::get_current().ok().flatten().unwrap_or(ptr::null_mut())
}

/// When this is dropped, the context that was current before is current again.
pub struct CallersContext(Before);

impl CallersContext {
    pub fn kept() -> Self {
        Self(BEFORE.replace(if probe::started() { Before::Kept(current()) } else { Before::Wanted }))
    }
}

impl Drop for CallersContext {
    fn drop(&mut self) {
        if let Before::Kept(context) = BEFORE.replace(self.0) {
            // SAFETY: the context was current on this thread, or it is null: then none is current again. If it was destroyed
            // since, this is an error, and nothing changes.
            let _ = unsafe { result::ctx::set_current(context) };
        }
    }
}

/// Keeps the context, if it is wanted. The driver has started.
pub fn keep_if_wanted() {
    if matches!(BEFORE.get(), Before::Wanted) {
        BEFORE.set(Before::Kept(current()));
    }
}
