//! How a session of the CPU finds labels, and why, in words.

use std::fmt;

use crate::backend::cpu::filter::ScoreForm;
use crate::simd::{DotUnit, InstructionSet};

/// How the rows of a fit on the CPU were compared with centroids, and why. It is written as a sentence. Results do not depend on
/// it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MethodExplanation {
    pub(in crate::backend::cpu) set: InstructionSet,
    pub(in crate::backend::cpu) tries: PossibleMethods,
    pub(in crate::backend::cpu) plan: MethodDecision,
}

impl MethodExplanation {
    /// What was tried. It is known before a fit.
    pub fn tries(&self) -> PossibleMethods {
        self.tries
    }
}

/// What a session tries to find labels by. It follows from the shape of the fit and from the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PossibleMethods {
    /// What is computed for a row and a centroid.
    pub(in crate::backend::cpu) form: ScoreForm,
    /// Whether a sample of the rows decides if rows are compared with the centroids near their group only.
    pub(in crate::backend::cpu) groups: bool,
    /// Whether integer copies of the rows may be compared first.
    pub(in crate::backend::cpu) copies: bool,
    /// Whether a tree finds the centroids near a row, and whether that is certain. Else the sample decides.
    pub(in crate::backend::cpu) tree: Option<bool>,
}

impl PossibleMethods {
    /// Before a session knows its rows.
    pub(in crate::backend::cpu) const NOTHING: Self =
        Self { form: ScoreForm::Product, groups: false, copies: false, tree: None };
}

impl fmt::Display for PossibleMethods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tree == Some(true) {
            return f.write_str("a tree");
        }
        f.write_str(if self.form == ScoreForm::Difference { "differences" } else { "products" })?;
        let more = [(self.groups, ", groups"), (self.copies, ", copies"), (self.tree.is_some(), ", a tree")];
        more.into_iter().filter(|(tried, _)| *tried).try_for_each(|(_, name)| f.write_str(name))
    }
}

/// What a session chose. Shares are those of the scores of rows and centroids.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MethodDecision {
    /// All centroids, because there is no memory for groups of rows.
    NoMemory,
    /// All centroids, because this share of a sample would remain, or because groups were not tried. Maybe by integer copies first.
    All { remains: Option<f64>, copies: Option<CopiesDecision> },
    /// The centroids near each row, which a tree finds.
    Tree,
    /// The centroids near each group of rows.
    Groups { groups: usize, remains: f64, copies: Option<CopiesDecision> },
    /// All centroids, because this share remained in some assign.
    GivenUp { groups: usize, remained: f64 },
}

/// The copies that are compared first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiesDecision {
    pub unit: DotUnit,
    /// Whether they left so much doubt that the session does without them now.
    pub given_up: bool,
}

impl MethodDecision {
    /// What small fits choose.
    pub const ALL: Self = Self::All { remains: None, copies: None };

    /// The same without integer copies.
    pub fn without_copies(self) -> Self {
        let given_up = |copies: Option<CopiesDecision>| copies.map(|copies| CopiesDecision { given_up: true, ..copies });
        match self {
            Self::All { remains, copies } => Self::All { remains, copies: given_up(copies) },
            Self::Groups { groups, remains, copies } => Self::Groups { groups, remains, copies: given_up(copies) },
            other => other,
        }
    }
}

impl fmt::Display for MethodExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ALL: &str = "rows are compared with all centroids";
        let percent = |share: &f64| (share.clamp(0.0, 1.0) * 1_000.0).round() / 10.0;
        let Self { set, plan, .. } = self;
        match plan {
            MethodDecision::Tree => f.write_str("a tree finds the centroids near each row")?,
            MethodDecision::NoMemory => write!(f, "{ALL}, because there is no memory for groups of rows")?,
            MethodDecision::All { remains, copies } => {
                match remains {
                    None => write!(f, "{ALL}, because there are few rows or few clusters")?,
                    Some(share) => {
                        let share = percent(share);
                        write!(f, "{ALL}, because groups of rows would leave {share:.1} % of the distances in a sample")?;
                    }
                }
                copies.iter().try_for_each(|copies| copies.fmt(f))?;
            }
            MethodDecision::Groups { groups, remains, copies } => {
                write!(f, "rows lie in {groups} groups and are compared with the centroids near them, ")?;
                write!(f, "which leaves {:.1} % of the distances in a sample", percent(remains))?;
                copies.iter().try_for_each(|copies| copies.fmt(f))?;
            }
            MethodDecision::GivenUp { groups, remained } => {
                write!(f, "{ALL}, because {groups} groups of rows left {:.1} % of the distances", percent(remained))?;
            }
        }
        write!(f, "; instructions: {set}")
    }
}

impl fmt::Display for CopiesDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, given_up } = self;
        let kind = if unit.is_for_words() { "words" } else { "bytes" };
        write!(f, "; first by copies in {kind} ({unit})")?;
        if *given_up { f.write_str(", until these left too many rows in doubt") } else { Ok(()) }
    }
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(a_method_is_a_sentence);
    fn a_method_is_a_sentence() {
        let tries = PossibleMethods { copies: true, ..PossibleMethods::NOTHING };
        assert_eq!(tries.to_string(), "products, copies");
        let said = |plan| MethodExplanation { set: InstructionSet::Avx2, tries, plan }.to_string();
        let copies = Some(CopiesDecision { unit: DotUnit::Avx2, given_up: false });
        let near = MethodDecision::Groups { groups: 32, remains: 0.1147, copies };
        assert_eq!(
            said(near),
            "rows lie in 32 groups and are compared with the centroids near them, which leaves 11.5 % of the distances in a \
             sample; first by copies in bytes (AVX-VNNI); instructions: AVX2"
        );
        assert!(said(near.without_copies()).contains("(AVX-VNNI), until these left too many rows in doubt; "));
        let few = said(MethodDecision::All { remains: None, copies });
        assert!(few.contains("few clusters; first by copies in bytes (AVX-VNNI); "), "{few}");
        assert_eq!(said(MethodDecision::Tree), "a tree finds the centroids near each row; instructions: AVX2");
        assert_eq!(PossibleMethods { tree: Some(false), ..tries }.to_string(), "products, copies, a tree");
        assert_eq!(PossibleMethods { tree: Some(true), ..tries }.to_string(), "a tree");
        let given_up = said(MethodDecision::GivenUp { groups: 8, remained: 2.0 });
        assert!(given_up.starts_with("rows are compared with all centroids, because 8 groups of rows left 100.0 % of"));
    }
}
