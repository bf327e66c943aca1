//! The target that `WEIR_FUZZ_TARGET` names, driven by libFuzzer. With `WEIR_FUZZ_SEEDS=FOLDER` it
//! writes the seeds of every target to `FOLDER/TARGET/seed-N` instead and prints the targets' names.

#![no_main]

use std::path::Path;
use std::sync::LazyLock;
use std::{env, fs, io, panic, process};

static RUN: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = env::var("WEIR_FUZZ_TARGET").expect("WEIR_FUZZ_TARGET names a target");
    let found = weir_fuzz::targets()
        .into_iter()
        .find(|target| target.name == name);
    found.expect("WEIR_FUZZ_TARGET is one of the targets").run
});

libfuzzer_sys::fuzz_target!(
    init: {
        // libFuzzer's hook ends the process at a panic that our code catches, of a foreign decoder.
        drop(panic::take_hook());
        if let Some(folder) = env::var_os("WEIR_FUZZ_SEEDS") {
            export(Path::new(&folder)).expect("seeds can be written");
            process::exit(0);
        }
    },
    |data: &[u8]| (RUN)(data)
);

fn export(folder: &Path) -> io::Result<()> {
    for target in weir_fuzz::targets() {
        let folder = folder.join(target.name);
        fs::create_dir_all(&folder)?;
        for (index, seed) in (target.seeds)().iter().enumerate() {
            fs::write(folder.join(format!("seed-{index}")), seed)?;
        }
        println!("{}", target.name);
    }
    Ok(())
}
