//! The targets in the ordinary tests: seeds, some mutations of them, and what once was found.

use std::fs;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::golden;
use crate::target::{Target, targets};

/// Mutations of each target's seeds; the same in each run.
const MUTATIONS: usize = 300;

fn mutated(random: &mut StdRng, seed: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.random()),
            2 if at < bytes.len() => bytes[at] ^= 1 << random.random_range(0..8),
            _ if at < bytes.len() => {
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.random_range(0..5)];
            }
            _ => {}
        }
    }
    bytes
}

fn try_seeds(target: Target) {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{} has no seed", target.name);
    let mut random = StdRng::seed_from_u64(7);
    for seed in &seeds {
        (target.run)(seed);
    }
    (target.run)(&[]);
    for number in 0..MUTATIONS {
        (target.run)(&mutated(&mut random, &seeds[number % seeds.len()]));
    }
}

#[test]
fn no_decoder_panics_at_its_seeds_or_at_damage_to_them() {
    for target in targets() {
        eprintln!("{}", target.name);
        try_seeds(target);
    }
}

#[test]
fn what_was_found_once_stays_mended() {
    let folder = golden::folder("tests/fuzz/found");
    for found in fs::read_dir(folder).expect("a folder can be listed") {
        let found = found.expect("a folder can be listed").path();
        let target = targets()
            .into_iter()
            .find(|target| found.ends_with(target.name));
        let target = target.unwrap_or_else(|| panic!("{} is of no target", found.display()));
        let inputs: Vec<_> = fs::read_dir(&found)
            .expect("a folder can be listed")
            .collect();
        assert!(!inputs.is_empty(), "{} holds nothing", found.display());
        for input in inputs {
            let path = input.expect("a folder can be listed").path();
            eprintln!("{}", path.display());
            (target.run)(&fs::read(path).expect("an input is readable"));
        }
    }
}

#[test]
fn every_target_has_a_name_of_its_own() {
    let names: Vec<&str> = targets().iter().map(|target| target.name).collect();
    let mut unique = names.clone();
    unique.dedup();
    assert_eq!(names, unique);
    assert!(
        names
            .iter()
            .all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
    );
}
