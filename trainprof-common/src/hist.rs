//! Histogram buckets, the same arithmetic in the kernel and in user space.

/// Latency buckets: four to an octave from 64 ns to about 17 s; the last one is open-ended.
pub const LATENCY_BUCKETS: usize = 128;
/// Size buckets: powers of two; bucket 0 holds 0 bytes, bucket `n` holds `[2^(n-1), 2^n)`.
pub const SIZE_BUCKETS: usize = 40;
/// Coarse latency buckets: each is two of the others, so two to an octave.
pub const COARSE_BUCKETS: usize = LATENCY_BUCKETS / 2;
/// Latencies are counted in units of `1 << LATENCY_SHIFT` ns.
const LATENCY_SHIFT: u32 = 6;

/// How many bits a number has: position of the highest set bit and 1; 0 for 0. Without a branch, which the kernel's verifier
/// would follow both ways; BPF has no such instruction before cpu v4. (Warren, Hacker's Delight, 5-1 and 5-3.)
#[inline(always)]
const fn bits(mut v: u64) -> u32 {
    v |= v >> 1;
    v |= v >> 2;
    v |= v >> 4;
    v |= v >> 8;
    v |= v >> 16;
    v |= v >> 32;
    v -= (v >> 1) & 0x5555_5555_5555_5555;
    v = (v & 0x3333_3333_3333_3333) + ((v >> 2) & 0x3333_3333_3333_3333);
    v = (v + (v >> 4)) & 0x0f0f_0f0f_0f0f_0f0f;
    (v.wrapping_mul(0x0101_0101_0101_0101) >> 56) as u32
}

/// The bucket that a latency in nanoseconds falls into.
#[inline(always)]
pub fn latency_bucket(ns: u64) -> u32 {
    let v = ns >> LATENCY_SHIFT;
    if v < 4 {
        return v as u32;
    }
    let e = bits(v) - 1;
    let bucket = (e - 1) * 4 + ((v >> (e - 2)) & 3) as u32;
    if bucket < LATENCY_BUCKETS as u32 {
        bucket
    } else {
        LATENCY_BUCKETS as u32 - 1
    }
}

/// The range `[low, high)` in nanoseconds that a latency bucket covers.
pub const fn latency_range(bucket: usize) -> (u64, u64) {
    const fn low(bucket: usize) -> u64 {
        if bucket < 4 {
            return bucket as u64;
        }
        let e = bucket / 4 + 1;
        (4 + bucket as u64 % 4) << (e - 2)
    }
    (
        low(bucket) << LATENCY_SHIFT,
        low(bucket + 1) << LATENCY_SHIFT,
    )
}

/// The range `[low, high)` in nanoseconds that a coarse latency bucket covers.
pub const fn coarse_range(bucket: usize) -> (u64, u64) {
    (latency_range(2 * bucket).0, latency_range(2 * bucket + 1).1)
}

/// The bucket that a size in bytes falls into.
#[inline(always)]
pub fn size_bucket(bytes: u64) -> u32 {
    let bucket = bits(bytes);
    if bucket < SIZE_BUCKETS as u32 {
        bucket
    } else {
        SIZE_BUCKETS as u32 - 1
    }
}

/// The smallest size in bytes of a size bucket.
pub const fn size_low(bucket: usize) -> u64 {
    if bucket == 0 { 0 } else { 1 << (bucket - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted() {
        for v in (0..64).flat_map(|n| [(1_u64 << n) - 1, 1 << n, (1 << n) + 1]) {
            assert_eq!(bits(v), 64 - v.leading_zeros(), "{v:#x}");
        }
        assert_eq!(bits(u64::MAX), 64);
    }

    #[test]
    fn latency_buckets_tile_the_axis() {
        for bucket in 0..LATENCY_BUCKETS - 1 {
            let (low, high) = latency_range(bucket);
            assert!(low < high);
            assert_eq!(latency_bucket(low) as usize, bucket, "low end of {bucket}");
            assert_eq!(
                latency_bucket(high - 1) as usize,
                bucket,
                "high end of {bucket}"
            );
            assert_eq!(latency_range(bucket + 1).0, high);
        }
        assert_eq!(latency_bucket(u64::MAX) as usize, LATENCY_BUCKETS - 1);
    }

    #[test]
    fn coarse_buckets_tile_the_axis() {
        for bucket in 0..COARSE_BUCKETS - 1 {
            let (low, high) = coarse_range(bucket);
            assert_eq!(latency_bucket(low) as usize / 2, bucket);
            assert_eq!(latency_bucket(high - 1) as usize / 2, bucket);
            assert_eq!(coarse_range(bucket + 1).0, high);
        }
    }

    #[test]
    fn size_buckets_are_powers_of_two() {
        assert_eq!(size_bucket(0), 0);
        for bucket in 1..SIZE_BUCKETS - 1 {
            assert_eq!(size_bucket(size_low(bucket)) as usize, bucket);
            assert_eq!(size_bucket(size_low(bucket + 1) - 1) as usize, bucket);
        }
        assert_eq!(size_bucket(u64::MAX) as usize, SIZE_BUCKETS - 1);
    }
}
