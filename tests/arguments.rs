//! What the build reads in CUDA structs and kernels, and its errors (`build/arguments.rs`). That both compilers agree with it
//! about the real kernels is checked by the build itself.

#[path = "../build/arguments.rs"]
mod arguments;

use arguments::{Arguments, Texts};
use std::path::PathBuf;

/// As in `build.rs`.
type Result<T> = std::result::Result<T, String>;

const HEADER: &str = "#define MOST 16 // a comment

// The rows.
template <typename T, typename S = T> struct Rows {
    const S* x; // (d, stride)
    u32 n;

    __device__ T at(u64 i) const {
        return x[i];
    }
};
struct Factors {
    double first, second;
};
";

const SOURCE: &str = "// Labels rows.
template <typename T, typename S = T> struct Label {
    Rows<T, S> rows;
    T scale;
    // The sums.
    const Factors* factors[2 * MOST];
    const u32* counts;
    const T* values;
    u8 small[3];
    u16 last;
};
#define KERNEL(T, S, D, NAME)                                                                   \\
    extern \"C\" __global__ void __launch_bounds__(4 * MOST, D == 1 ? 2 : 3) NAME(const __grid_constant__ Label<T, S> a) { f<D>(a); }
#define ALL(D)                               \\
    KERNEL(float, float, D, label_f32_d##D)  \\
    KERNEL(double, double, D, label_f64_d##D)
ALL(1)
ALL(2)
extern \"C\" __global__ void __launch_bounds__(32) end(const __grid_constant__ Factors a) {
}
";

fn read(source: &str) -> Result<(String, String)> {
    let (file, header) = (PathBuf::from("kernels/papers/label.cu"), PathBuf::from("kernels/common/rows.cuh"));
    let texts: Texts = [(file.clone(), source.to_owned()), (header, HEADER.to_owned())].into();
    let all = Arguments::read(&[(file, texts.clone())])?;
    Ok((all.rust()?, all.cuda_assertions(&texts)))
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "expected {part:?} in\n{text}");
    }
}

#[test]
fn structs_and_kernels_come_to_rust() {
    let (rust, cuda) = read(SOURCE).unwrap();
    let label = "pub struct LabelArgument<T> {
    pub rows: RowsArgument,
    pub scale: T,
    pub factors: [At<Factors>; 32],
    pub counts: At<u32>,
    pub values: u64,
    pub small: [u8; 3],
    pub last: u16,
}";
    let rows = "/// The rows.
///
/// `Rows` of `kernels/common/rows.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RowsArgument {
    /// (d, stride)
    pub x: u64,
    pub n: u32,
}";
    let kernel = "/// `label_f32_d1`, `label_f64_d1`, `label_f32_d2`, `label_f64_d2`.
#[cfg(feature = \"papers\")]
pub const fn label<T: Float>() -> Entry<LabelArgument<T>> {
    Entry::typed::<T>(\"label\", \"label\", 64)
}";
    let end = "pub const fn end() -> Entry<Factors> {\n    Entry::untyped(\"label\", \"end\", 32)\n}";
    has(
        &rust,
        &[
            label,
            rows,
            kernel,
            end,
            "counts: At::NULL,",
            "values: 0,",
            "unsafe impl Plain for Factors {}",
            "offset_of!(LabelArgument<f32>, last) == 300",
        ],
    );
    has(&rust, &["unsafe impl<T: Float> Argument for LabelArgument<T> {}", "size_of::<LabelArgument<f64>>() == 304"]);
    has(
        &cuda,
        &[
            "offsetof(::Label<double>, factors) == 24, \"::Label<double>.factors is at byte 24 in Rust\")",
            "sizeof(::Rows<float>) == 16",
            "sizeof(::Factors) == 16",
        ],
    );
    assert!(!rust.contains("Argument for RowsArgument") && !rust.contains("Plain for RowsArgument"));
}

#[test]
fn errors_say_what_is_wrong() {
    let end = "__launch_bounds__(32) end(const __grid_constant__ Factors a)";
    for (old, new, part) in [
        (
            "T scale;",
            "bool scale;",
            "kernels/papers/label.cu: Label: expected a number, a pointer or a struct, such as `u32 n, k;`",
        ),
        ("T scale;", "T scale = 1;", "got `T scale = 1;`"),
        ("T scale;", "const T* low, high;", "expected one pointer in a line"),
        ("2 * MOST", "2 * LEAST", "got `const Factors* factors[2 * LEAST];`"),
        (
            "const Factors* factors",
            "const Rows<T>* factors",
            "Rows lies in device memory: expected fields in the place of its padding",
        ),
        ("struct Label {", "struct Other {", "label_f32_d1 takes Label, which neither this file nor a header defines"),
        (
            "KERNEL(double, double, D, label_f64",
            "KERNEL(float, float, D, label_f64",
            "label_f64_d1 takes Label<float>: expected float",
        ),
        (
            end,
            "label(const __grid_constant__ Factors a)",
            "label and label_f32_d1 of kernels/papers/label.cu are both label in Rust",
        ),
        (
            end,
            "end(const __grid_constant__ Factors a, int b)",
            "expected a kernel with the parameter `const __grid_constant__ STRUCT a`",
        ),
        ("extern \"C\" __global__ void __launch_bounds__(32)", "__global__ void", "expected a line that begins with `extern"),
    ] {
        assert!(SOURCE.contains(old), "{old}");
        let error = read(&SOURCE.replace(old, new)).expect_err(new);
        assert!(error.contains(part), "{new}: expected {part:?} in {error:?}");
    }
}
