//! The unit tests: they stand beside what they test, and are compiled with the library by feature `tests`.
//!
//! `cargo test --features tests --test unit [-- NAME]` runs them. Cargo's own way compiles the whole library a second time for
//! unit tests, which takes longer than all of them run.

/// A test, by its path.
pub struct UnitTest {
    pub name: &'static str,
    pub run: fn(),
}

inventory::collect!(UnitTest);

/// All tests of this build.
pub fn all() -> impl Iterator<Item = &'static UnitTest> {
    inventory::iter::<UnitTest>.into_iter()
}

/// Makes a function a test: `unit_test!(name);` stands before `fn name() { ... }`.
macro_rules! unit_test {
    ($name:ident) => {
        inventory::submit! {
            crate::unit_tests::UnitTest { name: concat!(module_path!(), "::", stringify!($name)), run: $name }
        }
    };
}
