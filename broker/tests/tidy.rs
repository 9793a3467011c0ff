//! Owns the rules of the tree that no compiler checks: layering, file and function sizes, where `unsafe` may stand, what
//! documents may name. Reads text only; never builds or runs anything.
//!
//! Numbers that may only shrink stand in `scripts/tidy-allow.txt`. Words that this file forbids are put together from
//! pieces, so that it passes itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const LINES_PER_FILE_MAX: usize = 800;
const LINES_PER_FUNCTION_MAX: usize = 70;

/// Output of generators: its shape is not ours to choose.
const GENERATED: [&str; 3] =
    ["protocol/src/messages/", "protocol/src/group/generated/", "protocol/flat/src/generated/"];

/// Where `unsafe` may stand, and nowhere else.
const UNSAFE_ALLOWED: [&str; 6] = [
    "shard/io/",
    "shard/src/mesh.rs",
    "protocol/flat/src/generated/",
    // Counting allocators: the trait of an allocator is unsafe to implement.
    "protocol/tests/allocations.rs",
    "protocol/tests/records_bombs.rs",
    "raft/tests/allocations.rs",
];

/// Crate (its folder) -> our crates that it may depend on. Arrows run one way.
const ARROWS: [(&str, &[&str]); 10] = [
    ("protocol", &[]),
    ("protocol/codegen", &[]),
    ("protocol/flat", &[]),
    ("raft", &["ringlog-protocol"]),
    ("raft/model", &[]),
    ("shard/io", &[]),
    ("shard/soak", &["ringlog-io"]),
    ("shard", &["ringlog-protocol", "ringlog-raft", "ringlog-io"]),
    ("bench", &["ringlog-protocol", "ringlog-io"]),
    (
        "broker",
        &["ringlog-bench", "ringlog-flat", "ringlog-io", "ringlog-protocol", "ringlog-raft", "ringlog-shard"],
    ),
];

/// Folder -> paths that no file below it may name. Tests are exempt.
const LAYERS: [(&str, &[&str]); 8] = [
    (
        "protocol/src/",
        &["std::fs", "std::net", "std::thread", "std::time::Instant", "std::time::SystemTime", "tokio::"],
    ),
    (
        "raft/src/",
        &["std::fs", "std::net", "std::thread", "std::time::Instant", "std::time::SystemTime", "tokio::"],
    ),
    ("shard/src/", &["std::fs", "std::net", "ringlog_protocol::messages", "ringlog_broker", "tokio::"]),
    (
        "broker/src/controller/",
        &[
            "std::fs",
            "std::net",
            "std::thread",
            "ringlog_io",
            "crate::handlers",
            "crate::core",
            "crate::server",
            "crate::http",
        ],
    ),
    (
        "broker/src/group/",
        &[
            "std::fs",
            "std::net",
            "std::thread",
            "ringlog_io",
            "crate::handlers",
            "crate::core",
            "crate::server",
            "crate::http",
        ],
    ),
    (
        "broker/src/config/",
        &["ringlog_io::Io", "crate::handlers", "crate::core", "crate::server", "crate::http"],
    ),
    ("broker/src/handlers/", &["std::fs", "std::net", "std::thread", "crate::cli", "crate::http"]),
    ("bench/src/", &["ringlog_shard", "ringlog_broker", "ringlog_raft"]),
];

/// One text file of the tree.
struct TextFile {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
}

impl TextFile {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_generated(&self) -> bool {
        GENERATED.iter().any(|folder| self.path.starts_with(folder))
    }

    fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs") || self.path.contains("/benches/")
    }

    /// The lines in front of the file's test module.
    fn production_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().take_while(|(_, line)| line.trim() != "#[cfg(test)]")
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_path_buf()
}

/// Every text file that is ours: no build output, no data, nothing of git.
fn text_files() -> Vec<TextFile> {
    let mut files = Vec::new();
    collect(&root(), &root(), &mut files);
    assert!(files.len() > 50, "only {} files found below {}", files.len(), root().display());
    files
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<TextFile>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder of the tree can be listed")
        .flatten()
        .map(|entry| entry.path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            let skipped = ["target", ".git", "__pycache__", "data", "ringlog-data", "corpus", "artifacts"];
            if !skipped.contains(&name) {
                collect(root, &path, files);
            }
        } else if let Ok(text) = fs::read_to_string(&path) {
            // What is no UTF-8 is a golden file or a capture.
            let relative = path.strip_prefix(root).expect("the walk starts at the root");
            files.push(TextFile { path: relative.to_string_lossy().into_owned(), text });
        }
    }
}

/// `scripts/tidy-allow.txt`: name -> lines. A name is a path, or path::function.
fn allowances() -> BTreeMap<String, usize> {
    let text = fs::read_to_string(root().join("scripts/tidy-allow.txt")).unwrap_or_default();
    text.lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (name, lines) = line.rsplit_once(' ').expect("an allowance is NAME LINES");
            (name.trim().to_owned(), lines.parse().expect("an allowance ends with a number of lines"))
        })
        .collect()
}

fn report(what: &str, problems: &[String]) {
    assert!(problems.is_empty(), "{what}:\n  {}\n", problems.join("\n  "));
}

#[test]
fn every_file_opens_with_what_it_owns() {
    let problems: Vec<String> = text_files()
        .iter()
        .filter(|file| file.is_rust() && !file.path.starts_with("protocol/flat/src/generated/"))
        .filter(|file| !file.text.starts_with("//!"))
        .map(|file| file.path.clone())
        .collect();
    report("files that do not open with //!", &problems);
}

/// Whether a line, formatted by rustfmt, starts a function; then its name.
fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    while let Some((word, tail)) = rest.split_once(' ') {
        match word {
            "fn" => return Some(tail.split(['(', '<', ' ']).next().unwrap_or_default()),
            "pub" | "const" | "async" | "unsafe" | "extern" | "\"C\"" => rest = tail,
            word if word.starts_with("pub(") => rest = tail,
            _ => return None,
        }
    }
    None
}

/// (name, first line number, lines) of every function with a body of its own lines.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        let closing = format!("{}}}", " ".repeat(indent));
        let declaration = format!("{};", " ".repeat(indent));
        if line.ends_with(';') || line.ends_with('}') {
            continue;
        }
        let end = lines
            .iter()
            .skip(number + 1)
            .position(|next| **next == closing || next.starts_with(&declaration));
        if let Some(length) = end {
            found.push((name.to_owned(), number + 1, length + 2));
        }
    }
    found
}

#[test]
fn the_measure_of_functions_measures() {
    let text = "impl A {\n    pub(crate) async fn one(&self) -> u8 {\n        1\n    }\n\n    fn two() {}\n}\nfn three(\n) {\n}\n";
    let found = functions(text);
    assert_eq!(found, [("one".to_owned(), 2, 3), ("three".to_owned(), 8, 3)]);
}

#[test]
fn files_and_functions_stay_small() {
    let allowed = allowances();
    let mut problems = Vec::new();
    let mut needed = Vec::new();
    let mut measure = |name: String, place: String, lines: usize, limit: usize| {
        let bound = allowed.get(&name).copied().unwrap_or(limit).max(limit);
        if lines > bound {
            problems.push(format!("{place}: {lines} lines, at most {bound}"));
        }
        if lines > limit {
            needed.push(name);
        }
    };
    for file in text_files().iter().filter(|file| file.is_rust() && !file.is_generated()) {
        measure(file.path.clone(), file.path.clone(), file.text.lines().count(), LINES_PER_FILE_MAX);
        for (name, line, lines) in functions(&file.text) {
            let place = format!("{}:{line} fn {name}", file.path);
            measure(format!("{}::{name}", file.path), place, lines, LINES_PER_FUNCTION_MAX);
        }
    }
    problems.extend(
        allowed
            .keys()
            .filter(|name| !needed.contains(name))
            .map(|name| format!("scripts/tidy-allow.txt: {name} is small enough, strike it out")),
    );
    report("too long", &problems);
}

/// Whether code (comments and strings cut off, roughly) uses the keyword.
fn uses_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    ["{", "fn", "impl", "extern", "trait"].iter().any(|next| {
        let text = format!("unsafe {next}");
        code.split(&text).count() > 1 && !code.contains('"')
    })
}

#[test]
fn unsafe_stands_only_behind_its_doors() {
    let mut problems = Vec::new();
    for file in text_files().iter().filter(|file| file.is_rust()) {
        if UNSAFE_ALLOWED.iter().any(|place| file.path.starts_with(place)) {
            continue;
        }
        for (number, line) in file.text.lines().enumerate().filter(|(_, line)| uses_unsafe(line)) {
            problems.push(format!("{}:{}: {}", file.path, number + 1, line.trim()));
        }
    }
    report("unsafe outside of shard/io and the mesh", &problems);
}

/// Our crates that a manifest's section `[dependencies]` names.
fn own_dependencies(manifest: &str) -> Vec<String> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']).to_owned();
        } else if section == "dependencies" || section.ends_with(".dependencies") {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if name.starts_with("ringlog-") {
                found.push(name.to_owned());
            }
        }
    }
    found
}

/// A file that no `mod` names is compiled by nobody, and its tests are never run.
#[test]
fn tests_in_a_folder_are_modules_of_its_binary() {
    let files = text_files();
    let mut problems = Vec::new();
    for main in files.iter().filter(|file| file.is_test() && file.path.ends_with("/main.rs")) {
        let folder = main.path.trim_end_matches("main.rs");
        let names = files.iter().filter_map(|file| file.path.strip_prefix(folder)?.strip_suffix(".rs"));
        for name in names.filter(|name| *name != "main" && !name.contains('/')) {
            if !main.text.lines().any(|line| line == format!("mod {name};")) {
                problems.push(format!("{folder}{name}.rs"));
            }
        }
    }
    report("files of tests that their main.rs does not name", &problems);
}

#[test]
fn crate_arrows_run_one_way() {
    let mut problems = Vec::new();
    for (folder, allowed) in ARROWS {
        let path = root().join(folder).join("Cargo.toml");
        let manifest = fs::read_to_string(&path).expect("every crate of the table has a manifest");
        for name in own_dependencies(&manifest).iter().filter(|name| !allowed.contains(&name.as_str())) {
            problems.push(format!("{folder} depends on {name}"));
        }
        // Code too, so that a path or a development dependency opens no back door.
        for file in text_files()
            .iter()
            .filter(|file| file.is_rust() && file.path.starts_with(&format!("{folder}/src/")))
        {
            for (number, line) in file.production_lines() {
                let Some(rest) = line.trim_start().trim_start_matches("pub ").strip_prefix("use ringlog_")
                else {
                    continue;
                };
                let name =
                    format!("ringlog-{}", rest.split("::").next().unwrap_or_default().trim_end_matches(';'));
                // A crate is named after its folder, or after all folders on the way to it.
                let own =
                    [folder.rsplit('/').next().unwrap_or_default().to_owned(), folder.replace('/', "_")];
                let is_itself = own.iter().any(|own| name == format!("ringlog-{own}"));
                if !is_itself && !allowed.contains(&name.as_str()) {
                    problems.push(format!("{}:{}: {}", file.path, number + 1, line.trim()));
                }
            }
        }
    }
    let listed: Vec<&str> = ARROWS.iter().map(|(folder, _)| *folder).collect();
    let workspace = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace has a manifest");
    let members =
        workspace.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
    for member in
        members.split(',').map(|member| member.trim().trim_matches('"')).filter(|member| !member.is_empty())
    {
        if !listed.contains(&member) {
            problems
                .push(format!("{member} is a member of the workspace and missing in the table of arrows"));
        }
    }
    report("arrows that run the wrong way", &problems);
}

#[test]
fn folders_keep_to_their_layer() {
    let mut problems = Vec::new();
    for file in text_files().iter().filter(|file| file.is_rust() && !file.is_test() && !file.is_generated()) {
        for (folder, forbidden) in LAYERS.iter().filter(|(folder, _)| file.path.starts_with(folder)) {
            for (number, line) in file.production_lines() {
                let code = line.split("//").next().unwrap_or_default();
                for name in forbidden.iter().filter(|name| code.contains(**name)) {
                    problems.push(format!("{}:{}: {name} is not for {folder}", file.path, number + 1));
                }
            }
        }
    }
    report("files that reach out of their layer", &problems);
}

/// What stands in backticks or in a Markdown link and looks like a path of the tree.
fn named_paths(text: &str) -> Vec<String> {
    let tops = ["protocol/", "raft/", "shard/", "broker/", "bench/", "scripts/", "docs/", ".ci/"];
    text.split(['`', '(', ')', ' ', '\n', ',', '|'])
        .map(|word| word.trim_end_matches(['.', ':', ';']).split(['#', ':']).next().unwrap_or_default())
        .filter(|word| tops.iter().any(|top| word.starts_with(top)))
        .filter(|word| !word.contains(['*', '<', '{', '$']))
        .map(str::to_owned)
        .collect()
}

#[test]
fn documents_name_paths_that_exist() {
    let mut problems = Vec::new();
    for document in ["ARCHITECTURE.md", "README.md", "SECURITY.md", "docs/plan.md"] {
        let text = fs::read_to_string(root().join(document)).expect("the document exists");
        for path in named_paths(&text) {
            if !root().join(&path).exists() {
                problems.push(format!("{document}: {path}"));
            }
        }
    }
    report("paths that do not exist", &problems);
}

/// Joins pieces, so that the word does not stand in this file.
fn word(pieces: &[&str]) -> String {
    pieces.concat()
}

#[test]
fn forbidden_words_stand_nowhere() {
    let mut hosts = vec![
        word(&["crates", ".io"]),
        word(&["pypi", ".org"]),
        word(&["pythonhosted", ".org"]),
        word(&["maven", ".apache.org/maven2"]),
        word(&["repo1", ".maven"]),
        word(&["repo.maven", ".apache"]),
        word(&["proxy.golang", ".org"]),
        word(&["sum.golang", ".org"]),
        word(&["npmjs", ".org"]),
        word(&["deb.debian", ".org"]),
    ];
    let marks = [word(&["FIX", "ME"]), word(&["XX", "X:"]), word(&["dbg", "!("]), word(&["todo", "!("])];
    let machine = [word(&["/wo", "rk/"]), word(&["/ro", "ot/"]), word(&["/tmp/", "t-"])];
    hosts.extend(marks);
    hosts.extend(machine);
    let mut problems = Vec::new();
    for file in
        text_files().iter().filter(|file| file.path != "Cargo.lock" && !file.path.ends_with("/Cargo.lock"))
    {
        for (number, line) in file.text.lines().enumerate() {
            for found in hosts.iter().filter(|name| line.contains(name.as_str())) {
                problems.push(format!("{}:{}: {found}", file.path, number + 1));
            }
        }
    }
    report("hosts of registries, unfinished marks or machine paths", &problems);
}

/// Whether the text quotes a measured figure: a number with a unit of time, size, rate or share.
fn quotes_figure(paragraph: &str) -> Option<String> {
    let units = [
        "ns", "us", "µs", "ms", "MB", "MiB", "GB", "GiB", "MB/s", "GB/s", "MiB/s", "GiB/s", "%", "x", "×",
        "rec/s", "msg/s",
    ];
    let words: Vec<&str> = paragraph.split_whitespace().collect();
    for (index, text) in words.iter().enumerate() {
        let text = text.trim_matches(|c: char| "(),.;:*`".contains(c));
        if !text.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || ".,".contains(c));
        let next = words.get(index + 1).copied().unwrap_or_default();
        let next = next.trim_matches(|c: char| "(),.;:*`".contains(c));
        if units.contains(&unit) || (unit.is_empty() && units.contains(&next)) {
            return Some(format!("{text} {next}"));
        }
    }
    None
}

#[test]
fn readme_quotes_no_figure_without_evidence() {
    let text = fs::read_to_string(root().join("README.md")).expect("there is a README");
    let mut problems = Vec::new();
    // Every second piece lies between code fences: commands, not claims.
    for prose in text.split("```").step_by(2) {
        for paragraph in prose.split("\n\n") {
            let evidence: Vec<String> = named_paths(paragraph)
                .into_iter()
                .filter(|path| path.starts_with("docs/evidence/"))
                .collect();
            let proven = evidence.iter().any(|path| root().join(path).is_file());
            if let Some(figure) = quotes_figure(paragraph).filter(|_| !proven) {
                problems.push(format!("\"{figure}\" in: {}", paragraph.lines().next().unwrap_or_default()));
            }
        }
    }
    report("figures without a file in docs/evidence/", &problems);
}

#[test]
fn a_quoted_figure_is_noticed() {
    assert!(quotes_figure("starts in 80 ms").is_some());
    assert!(quotes_figure("is 2x faster").is_some());
    assert!(quotes_figure("idles below 1 % of a core").is_some());
    assert!(quotes_figure("version 0.1.0 speaks Produce 3 to 13").is_none());
}
