//! Answers with nulls in the form of an Arrow column: the values, and a validity bitmap.

use crate::error::Result;
use crate::memory::{self, Zero};

/// Values, and which of them are null.
#[derive(Debug, Clone, PartialEq)]
pub struct Nullable<T> {
    /// 0 where the value is null.
    pub values: Vec<T>,
    /// Bit `i % 8` of byte `i / 8` is set where value `i` is not null. `None` if no value is null.
    pub validity: Option<Vec<u8>>,
}

impl<T: Zero> Nullable<T> {
    /// Collects at most `n` answers. Error messages call them `what`.
    pub fn new(n: usize, answers: impl Iterator<Item = Option<T>>, what: &'static str) -> Result<Self> {
        let (mut values, mut bits) = (memory::zeroed(n, what)?, memory::zeroed(n.div_ceil(8), what)?);
        let mut there = 0;
        for (i, (value, answer)) in values.iter_mut().zip(answers).enumerate() {
            if let Some(answer) = answer {
                *value = answer;
                bits[i / 8] |= 1u8 << (i % 8);
                there += 1;
            }
        }
        Ok(Self { values, validity: (there < n).then_some(bits) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_bits() {
        let of = |answers: &[Option<u32>]| Nullable::new(answers.len(), answers.iter().copied(), "a test").unwrap();
        assert_eq!(of(&[]), Nullable { values: vec![], validity: None });
        assert_eq!(of(&[Some(7), Some(0)]), Nullable { values: vec![7, 0], validity: None });
        let mut answers = [Some(1); 10];
        (answers[1], answers[8]) = (None, None);
        let expected = Nullable { values: vec![1, 0, 1, 1, 1, 1, 1, 1, 0, 1], validity: Some(vec![0b1111_1101, 0b10]) };
        assert_eq!(of(&answers), expected);
    }
}
