//! Rules of this repository that a machine can check. Each failure names the file and the rule.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test that can't go on fails"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The longest source file, in lines without its inline tests.
const FILE_LINES: usize = 600;
/// The longest line, in characters.
const LINE_CHARS: usize = 110;
/// The largest file that may be committed.
const BLOB_BYTES: u64 = 1 << 20;

/// Which crates of ours a crate may use (the arrows of the design).
const ARROWS: &[(&str, &[&str])] = &[
    ("lake-format", &[]),
    ("server/protocol", &[]),
    ("server/kv", &["weir-protocol"]),
    ("catalog", &["weir-lake-format", "weir-protocol"]),
    (
        "server",
        &[
            "weir-catalog",
            "weir-kv",
            "weir-lake-format",
            "weir-protocol",
        ],
    ),
    (
        "tiering",
        &[
            "weir-catalog",
            "weir-lake-format",
            "weir-protocol",
            "weir-server",
        ],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ lies in the workspace")
        .into()
}

/// Every file that git knows or would add, relative to the root.
fn files() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git lists the files of the checkout");
    assert!(output.status.success(), "git ls-files failed");
    String::from_utf8(output.stdout)
        .expect("file names are UTF-8")
        .lines()
        .map(PathBuf::from)
        .filter(|path| root().join(path).is_file())
        .collect()
}

fn sources() -> Vec<(PathBuf, String)> {
    files()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| {
            let text = fs::read_to_string(root().join(&path)).expect("a source file is UTF-8");
            (path, text)
        })
        .collect()
}

fn is_test(path: &Path) -> bool {
    path.starts_with("tests")
        || path
            .file_name()
            .is_some_and(|name| name == "tests.rs" || name == "properties.rs")
        || path
            .components()
            .any(|part| part.as_os_str() == "tests" || part.as_os_str() == "benches")
}

/// The part of a source file before its inline tests; a `mod tests;` names another file and cuts
/// nothing.
fn without_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or(text)
}

fn assert_none(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

#[test]
fn source_files_and_lines_are_short() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        let lines = without_tests(&text).lines().count();
        if !is_test(&path) && lines > FILE_LINES {
            found.push(format!(
                "{}: {lines} lines, at most {FILE_LINES}",
                path.display()
            ));
        }
        for (number, line) in text.lines().enumerate() {
            if line.chars().count() > LINE_CHARS && !line.contains("http") && !line.contains('"') {
                found.push(format!(
                    "{}:{}: a line too long",
                    path.display(),
                    number + 1
                ));
            }
        }
    }
    assert_none("one noun and its verbs a file", &found);
}

#[test]
fn no_room_has_a_vague_name() {
    let vague = [
        "mod", "util", "utils", "helper", "helpers", "common", "misc",
    ];
    let found: Vec<_> = files()
        .iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter(|path| {
            path.file_stem()
                .is_some_and(|stem| vague.iter().any(|word| stem == *word))
        })
        .map(|path| path.display().to_string())
        .collect();
    assert_none("a file is named after what it holds", &found);
}

#[test]
fn crates_use_each_other_along_the_arrows_only() {
    let mut found = Vec::new();
    for (room, allowed) in ARROWS {
        let manifest =
            fs::read_to_string(root().join(room).join("Cargo.toml")).expect("a manifest");
        let normal = manifest
            .split("[dev-dependencies]")
            .next()
            .unwrap_or_default();
        for line in normal.lines().filter(|line| line.starts_with("weir-")) {
            let name: String = line
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '-')
                .collect();
            if !allowed.contains(&name.as_str()) {
                found.push(format!("{room} uses {name}"));
            }
        }
    }
    for (path, text) in sources() {
        let binary = path == Path::new("tiering/src/main.rs")
            || path == Path::new("tiering/src/embedded.rs")
            || path.starts_with("tiering/src/embedded");
        let inside_tiering = path.starts_with("tiering/src") && !binary;
        if inside_tiering && text.contains("weir_server::") {
            found.push(format!(
                "{}: the binary alone uses the server",
                path.display()
            ));
        }
    }
    assert_none("arrows between crates", &found);
}

/// The names of a manifest's dependencies, of all kinds.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_inside = false;
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            is_inside = section.ends_with("dependencies]");
        } else if is_inside && line.starts_with(|c: char| c.is_ascii_lowercase()) {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            names.push(name.to_owned());
        }
    }
    names
}

#[test]
fn every_dependency_is_used() {
    let mut found = Vec::new();
    let mut used = BTreeSet::new();
    let sources = sources();
    let rooms = ARROWS
        .iter()
        .map(|(room, _)| *room)
        .chain(["tests", "tests/fuzz"]);
    for room in rooms {
        let manifest = root().join(room).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).expect("a manifest");
        for name in dependencies(&manifest) {
            let path = name.replace('-', "_");
            let [prefix, import] = [format!("{path}::"), format!("use {path};")];
            let is_used = sources.iter().any(|(file, text)| {
                file.starts_with(room) && (text.contains(&prefix) || text.contains(&import))
            });
            // The code that tonic generates uses both.
            let is_generated = room == "tiering" && ["prost", "tonic-prost"].contains(&&*name);
            if !is_used && !is_generated {
                found.push(format!("{room} names {name} and uses it nowhere"));
            }
            used.insert(name);
        }
    }
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    for name in dependencies(&workspace) {
        if !used.contains(&name) && !name.starts_with("weir-") {
            found.push(format!("the workspace names {name}, no crate takes it"));
        }
    }
    assert_none("no dependency that nobody chose", &found);
}

#[test]
fn there_is_one_arrow_one_parquet_and_one_prost() {
    let lock = fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock is committed");
    let mut found = Vec::new();
    for name in [
        "arrow",
        "arrow-array",
        "parquet",
        "object_store",
        "prost",
        "tonic",
        "zstd-sys",
    ] {
        let count = lock
            .lines()
            .filter(|line| *line == format!("name = \"{name}\""))
            .count();
        if count > 1 {
            found.push(format!("{name} is in Cargo.lock {count} times"));
        }
    }
    assert_none("what moves bytes exists once", &found);
}

#[test]
fn nothing_names_a_place_outside_the_repository() {
    let words = [
        "/wo".to_owned() + "rk/",
        "/home/".to_owned() + "user",
        "../sha".to_owned() + "red",
    ];
    let mut found = Vec::new();
    for path in files() {
        let Ok(text) = fs::read_to_string(root().join(&path)) else {
            continue;
        };
        for (number, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word.as_str())) {
                found.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert_none("the repository stands alone", &found);
}

#[test]
fn no_committed_file_is_large() {
    let found: Vec<_> = files()
        .iter()
        .filter(|path| fs::metadata(root().join(path)).is_ok_and(|meta| meta.len() > BLOB_BYTES))
        .map(|path| path.display().to_string())
        .collect();
    assert_none("no blob over 1 MiB", &found);
}

#[test]
fn every_folder_of_golden_files_says_where_they_come_from() {
    let mut found = BTreeSet::new();
    for path in files() {
        let mut folder = PathBuf::new();
        for part in path.components() {
            folder.push(part);
            if part.as_os_str() != "golden" {
                continue;
            }
            if !root().join(&folder).join("README.md").is_file() {
                found.insert(folder.display().to_string());
            }
            break;
        }
    }
    assert_none(
        "golden files need a README.md",
        &found.into_iter().collect::<Vec<_>>(),
    );
}

#[test]
fn work_left_open_is_not_hidden_in_the_sources() {
    let words = [
        "todo!(".to_owned(),
        "unimplemented!(".to_owned(),
        "TO".to_owned() + "DO",
        "FIX".to_owned() + "ME",
    ];
    let mut found = Vec::new();
    for (path, text) in sources() {
        if path == Path::new("tests/tidy.rs") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let ignored = line.trim_start().starts_with("#[ignore");
            let slept = line.contains("thread::sleep(");
            if ignored || slept || words.iter().any(|word| line.contains(word.as_str())) {
                found.push(format!(
                    "{}:{}: {}",
                    path.display(),
                    number + 1,
                    line.trim()
                ));
            }
        }
    }
    assert_none("no unfinished, ignored or sleeping code", &found);
}

#[test]
fn the_top_level_holds_what_the_design_says() {
    let allowed = [
        "Cargo.toml",
        "Cargo.lock",
        "Makefile",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "tiering",
        "lake-format",
        "catalog",
        "server",
        "tests",
    ];
    let found: BTreeSet<_> = files()
        .iter()
        .filter_map(|path| path.components().next())
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.') && !allowed.contains(&name.as_str()))
        .collect();
    assert_none("top level", &found.into_iter().collect::<Vec<_>>());
}

/// The numbers of the field cases that a test is named after.
fn shown_field_cases() -> BTreeSet<u32> {
    let mut shown = BTreeSet::new();
    for path in files() {
        let kind = path.extension().and_then(|extension| extension.to_str());
        if !matches!(kind, Some("rs" | "py")) {
            continue;
        }
        let text = fs::read_to_string(root().join(&path)).expect("a source file is UTF-8");
        for line in text.lines() {
            let line = line.trim_start().trim_start_matches("async ");
            let name = line
                .strip_prefix("fn fc_")
                .or_else(|| line.strip_prefix("def fc_"));
            shown.extend(name.and_then(|name| name.get(..3)?.parse::<u32>().ok()));
        }
    }
    shown
}

#[test]
fn the_list_of_field_cases_is_true() {
    const CASES: u32 = 108;
    let list = fs::read_to_string(root().join("tests/field-cases.md")).expect("the list");
    let shown = shown_field_cases();
    let mut found = Vec::new();
    let mut listed = Vec::new();
    for line in list.lines().filter(|line| line.starts_with("| FC-")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let number = cells[1]
            .trim_start_matches("FC-")
            .parse::<u32>()
            .expect("a number");
        let state = cells[3];
        listed.push(number);
        let has_test = shown.contains(&number);
        let is_right = match state.split(':').next() {
            Some("shown" | "partly") => has_test,
            Some("waits" | "open") => !has_test && state.contains(": "),
            _ => false,
        };
        if !is_right {
            found.push(format!(
                "FC-{number:03} is listed as {state:?}, has a test: {has_test}"
            ));
        }
    }
    assert_eq!(
        listed,
        (1..=CASES).collect::<Vec<_>>(),
        "each case once, in order"
    );
    assert_none("what the list says is so", &found);
}

#[test]
fn planted_bugs_still_fit_the_sources() {
    let mut found = Vec::new();
    for path in files() {
        if !path.starts_with("tests/sim/planted") || path.extension().is_none_or(|e| e != "patch") {
            continue;
        }
        let checked = Command::new("git")
            .args(["apply", "--check"])
            .arg(&path)
            .current_dir(root())
            .output()
            .expect("git checks a patch");
        if !checked.status.success() {
            let said = String::from_utf8_lossy(&checked.stderr).into_owned();
            found.push(format!("{}: {said}", path.display()));
        }
    }
    assert_none("a bug that can't be planted shows nothing", &found);
}
