//! Numbers that look random and are the same for the same seed (splitmix64, Steele et al., OOPSLA 2014).

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to, not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[(self.next() % of.len() as u64) as usize]
    }

    /// A word that says nothing.
    pub fn word(&mut self) -> String {
        const SYLLABLES: [&str; 16] = [
            "ba", "do", "fe", "gi", "ka", "lo", "mu", "ne", "pi", "ra", "so", "tu", "va", "wi",
            "xo", "zu",
        ];
        let length = 2 + self.next() % 3;
        (0..length).map(|_| *self.pick(&SYLLABLES)).collect()
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let number = self.next().to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn same_seed_same_numbers() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            [random.next(), random.next()]
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
    }

    #[test]
    fn stays_between() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            let x = random.between(2.0, 3.0);
            assert!((2.0..3.0).contains(&x));
        }
    }
}
