//! The hash of encoded rows (paimon: `MurmurHashUtils`).

const SEED: i32 = 42;
const C1: i32 = 0xcc9e_2d51_u32.cast_signed();
const C2: i32 = 0x1b87_3593;

/// Murmur3 of 32 bits, seed 42, over little-endian words; `bytes` is a multiple of 4 long, further
/// bytes are left out.
pub(crate) fn murmur_hash(bytes: &[u8]) -> i32 {
    let mut hash = SEED;
    let (words, _) = bytes.as_chunks::<4>();
    for word in words {
        let k = i32::from_le_bytes(*word)
            .wrapping_mul(C1)
            .rotate_left(15)
            .wrapping_mul(C2);
        hash = (hash ^ k)
            .rotate_left(13)
            .wrapping_mul(5)
            .wrapping_add(0xe654_6b64_u32.cast_signed());
    }
    let length = i32::try_from(words.len() * 4).unwrap_or(i32::MAX);
    let mut h = (hash ^ length).cast_unsigned();
    h = (h ^ (h >> 16)).wrapping_mul(0x85eb_ca6b);
    h = (h ^ (h >> 13)).wrapping_mul(0xc2b2_ae35);
    (h ^ (h >> 16)).cast_signed()
}
