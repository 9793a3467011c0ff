//! `ringlog-codegen`: reads `protocol/schema/`, writes `protocol/src/messages/` and `protocol/src/group/generated/`.
//!
//! The output is committed, so that builds need no generator and reviews see what changes. With `--check` nothing is
//! written: it exits with 1 and names the files that differ from what the schema says.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use ringlog_codegen::model::{File, Kind};
use ringlog_codegen::{emit, parse};

/// Why nothing could be generated.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Parse(#[from] parse::ParseError),
    #[error("no *.kafka file in {path}")]
    Empty { path: PathBuf },
    #[error("{first} and {second} define the same key, record type or name")]
    Twice { first: String, second: String },
    #[error("rustfmt cannot be run: {source}")]
    Rustfmt { source: std::io::Error },
    #[error("rustfmt refuses {file}; this is a bug of the generator: {message}")]
    Output { file: String, message: String },
    #[error("usage: ringlog-codegen [--check]")]
    Usage,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ringlog-codegen: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode, Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_check = match arguments.as_slice() {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Err(Error::Usage),
    };
    let protocol = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut is_same = true;
    for folder in FOLDERS {
        let files = generate(&protocol.join("schema").join(folder.schema), folder)?;
        let output = protocol.join("src").join(folder.output);
        if is_check {
            is_same &= check(&output, &files)?;
        } else {
            write(&output, &files)?;
        }
    }
    if is_same {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("run `cargo run -p ringlog-codegen` and commit the result");
    Ok(ExitCode::FAILURE)
}

/// A folder of schemas and the folder of modules that is made from it.
struct Folder {
    /// Below `protocol/schema`.
    schema: &'static str,
    /// Below `protocol/src`.
    output: &'static str,
    /// Writes the module over all of them.
    index: fn(&[File]) -> String,
}

const FOLDERS: &[Folder] = &[
    Folder { schema: "", output: "messages", index: emit::index },
    Folder { schema: "group", output: "group/generated", index: emit::record_index },
];

/// File names below the output folder and their content.
fn generate(schema: &Path, folder: &Folder) -> Result<Vec<(String, String)>, Error> {
    let mut parsed: Vec<File> = Vec::new();
    for path in list(schema, "kafka")? {
        let text =
            std::fs::read_to_string(&path).map_err(|source| Error::File { path: path.clone(), source })?;
        let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        parsed.push(parse::parse(&file, &text)?);
    }
    if parsed.is_empty() {
        return Err(Error::Empty { path: schema.to_owned() });
    }
    for (index, file) in parsed.iter().enumerate() {
        let is_taken = |other: &&File| {
            let mut pairs =
                other.models.iter().flat_map(|known| file.models.iter().map(move |new| (known, new)));
            pairs.any(|(known, new)| {
                known.name == new.name || (new.kind != Kind::Data && known.kind == new.kind)
            })
        };
        if let Some(other) = parsed[..index].iter().find(is_taken) {
            return Err(Error::Twice { first: other.module.clone(), second: file.module.clone() });
        }
    }
    let mut files = vec![("mod.rs".to_owned(), (folder.index)(&parsed))];
    files.extend(parsed.iter().map(|file| {
        let source = Path::new(folder.schema).join(format!("{}.kafka", file.module));
        (format!("{}.rs", file.module), emit::module(file, &source.to_string_lossy()))
    }));
    files.into_iter().map(|(file, text)| format(&file, &text).map(|text| (file, text))).collect()
}

fn list(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::File { path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|found| found == extension) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Runs rustfmt with the workspace's settings. From standard input it formats this text only, never the modules it names.
fn format(file: &str, text: &str) -> Result<String, Error> {
    let rustfmt = |source| Error::Rustfmt { source };
    let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(settings)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(rustfmt)?;
    let mut input = child.stdin.take().expect("piped above");
    // rustfmt reads all of its input before it writes, so this cannot block on a full pipe.
    input.write_all(text.as_bytes()).map_err(rustfmt)?;
    drop(input);
    let output = child.wait_with_output().map_err(rustfmt)?;
    let failed = |message: &[u8]| Error::Output {
        file: file.to_owned(),
        message: String::from_utf8_lossy(message).into_owned(),
    };
    if !output.status.success() {
        return Err(failed(&output.stderr));
    }
    String::from_utf8(output.stdout).map_err(|error| failed(error.as_bytes()))
}

fn write(output: &Path, files: &[(String, String)]) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { path, source }
    };
    std::fs::create_dir_all(output).map_err(failed(output))?;
    for (file, text) in files {
        let path = output.join(file);
        if std::fs::read_to_string(&path).is_ok_and(|known| known == *text) {
            continue;
        }
        std::fs::write(&path, text).map_err(failed(&path))?;
        println!("wrote {}", path.display());
    }
    for path in stale(output, files)? {
        std::fs::remove_file(&path).map_err(failed(&path))?;
        println!("removed {}", path.display());
    }
    Ok(())
}

/// Files in the output folder that no schema asks for.
fn stale(output: &Path, files: &[(String, String)]) -> Result<Vec<PathBuf>, Error> {
    let mut paths = list(output, "rs")?;
    paths.retain(|path| files.iter().all(|(file, _)| output.join(file) != *path));
    Ok(paths)
}

/// Whether the output folder holds these files and no others.
fn check(output: &Path, files: &[(String, String)]) -> Result<bool, Error> {
    let mut is_same = true;
    for (file, text) in files {
        let path = output.join(file);
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        if known == *text {
            continue;
        }
        is_same = false;
        let line = known.lines().zip(text.lines()).take_while(|(known, new)| known == new).count();
        eprintln!("{}:{}: differs from the schema", path.display(), line + 1);
        eprintln!("  committed: {}", known.lines().nth(line).unwrap_or("(end of file)"));
        eprintln!("  generated: {}", text.lines().nth(line).unwrap_or("(end of file)"));
    }
    for path in stale(output, files)? {
        is_same = false;
        eprintln!("{}: no schema asks for it", path.display());
    }
    Ok(is_same)
}
