//! Luck with a seed: the only source of chance in a simulated world. Never asks the system for any.

/// SplitMix64: small, fast, and the same on every machine.
#[derive(Debug, Clone)]
pub struct Chance {
    state: u64,
}

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance { state: seed }
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

    pub fn in_thousand(&mut self, times: i64) -> bool {
        // No draw when it cannot happen, so that a fault that is switched off changes nothing else.
        times > 0 && self.between(0, 1000) < times
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
    fn all_of_a_range_is_drawn_and_nothing_else() {
        let mut chance = Chance::new(1);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[(chance.between(-2, 3) + 2) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
    }
}
