//! The seeded random number generator: the only source of randomness in a simulation.

/// SplitMix64: small, fast, and the same on every machine.
#[derive(Debug, Clone)]
pub struct Chance {
    state: u64,
}

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance { state: seed }
    }

    /// The luck of one decision, whatever else was drawn before it.
    pub fn of(seed: u64, kind: u64, number: u64) -> Chance {
        let mut chance = Chance::new(seed ^ kind.wrapping_mul(0xA076_1D64_78BD_642F));
        chance.state = chance.next() ^ number.wrapping_mul(0xE703_7ED1_A0B4_28DB);
        chance
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// `low ≤ n < high`.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        assert!(low < high, "nothing lies between {low} and {high}");
        low + (self.next() % (high - low) as u64) as i64
    }

    /// One time in `times`.
    pub fn one_in(&mut self, times: i64) -> bool {
        self.between(0, times) == 0
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.between(0, of.len() as i64) as usize]
    }

    /// A stream of its own: what one part of the world draws does not move the others.
    pub fn fork(&mut self) -> Chance {
        Chance::new(self.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same() {
        let draw = |seed| (0..8).map(|_| Chance::new(seed).between(0, 1_000_000)).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn decisions_have_luck_of_their_own() {
        let draw = |kind, number| Chance::of(7, kind, number).between(0, 1_000_000);
        assert_eq!(draw(1, 2), draw(1, 2));
        let different: std::collections::BTreeSet<i64> =
            (0..10).flat_map(|kind| (0..10).map(move |number| draw(kind, number))).collect();
        assert!(different.len() > 95, "{}", different.len());
    }

    #[test]
    fn all_of_a_range_is_drawn_and_nothing_else() {
        let mut chance = Chance::new(1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[(chance.between(-2, 3) + 2) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
    }
}
