//! Adds allow rules to the user's own settings for one project: the answers "always here" (R243, R286). The file lies
//! below the storage root, where a repository cannot bring it along.

use std::io;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::layout::Layout;
use super::settings::FILE_MAX;
use crate::files::{self, FileError, Sync};

/// Why an answer holds for the session only.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot read {path}: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is no readable settings file: {message}", path = path.display())]
    Syntax { path: PathBuf, message: String },
    #[error("in {path} `{key}` is not {wanted}", path = path.display())]
    Shape { path: PathBuf, key: &'static str, wanted: &'static str },
}

/// Writes the rules that are not there yet, as one step; returns the file.
pub fn keep_allowed(layout: &Layout, project: &Path, rules: &[String]) -> Result<PathBuf, AnswerError> {
    let path = layout.user_settings_for(project);
    files::create_private_folder(layout.root())?;
    files::create_private_folder(path.parent().unwrap_or(layout.root()))?;
    // Several sessions may be answered at once.
    let _lock = files::lock(&path.with_extension("lock"))?;
    let mut settings = read(&path)?;
    let permissions = settings.entry("permissions").or_insert_with(|| Value::Table(Table::new()));
    let permissions = permissions.as_table_mut().ok_or(AnswerError::Shape { path: path.clone(), key: "permissions", wanted: "a table" })?;
    let allow = permissions.entry("allow").or_insert_with(|| Value::Array(Vec::new()));
    let allow = allow.as_array_mut().ok_or(AnswerError::Shape { path: path.clone(), key: "permissions.allow", wanted: "a list" })?;
    for rule in rules {
        if !allow.iter().any(|known| known.as_str() == Some(rule)) {
            allow.push(Value::String(rule.clone()));
        }
    }
    let project = project.display().to_string().replace(['\n', '\r'], "?");
    let text = format!(
        "# Your own settings for {project}.\n# Written when you answer \"always here\"; you may change it (comments are not kept).\n\n{settings}"
    );
    files::replace(&path, text.as_bytes(), Sync::Disk)?;
    Ok(path)
}

fn read(path: &Path) -> Result<Table, AnswerError> {
    match files::read_text_bounded(path, FILE_MAX) {
        Ok(text) => text
            .parse()
            .map_err(|error: toml::de::Error| AnswerError::Syntax { path: path.to_owned(), message: error.message().to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Table::new()),
        Err(source) => Err(AnswerError::Read { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(layout: &Layout, project: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(layout.user_settings_for(project)).unwrap();
        let table: Table = text.parse().unwrap();
        table["permissions"]["allow"].as_array().unwrap().iter().map(|rule| rule.as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn rules_are_added_once_and_other_settings_stay() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path().join("root"));
        let project = Path::new("/home/anna/my project");
        let path = keep_allowed(&layout, project, &["Bash(git push:*)".into()]).unwrap();
        assert!(path.starts_with(layout.root()) && path.file_name().unwrap().to_string_lossy().starts_with("my-project-"));
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.insert_str(0, "model = \"a/b\"\n");
        std::fs::write(&path, text).unwrap();
        keep_allowed(&layout, project, &["Bash(git push:*)".into(), "Edit(/a \"b\".txt)".into()]).unwrap();
        assert_eq!(kept(&layout, project), ["Bash(git push:*)", "Edit(/a \"b\".txt)"]);
        assert!(std::fs::read_to_string(&path).unwrap().contains("model = \"a/b\""));
        keep_allowed(&layout, Path::new("/other/my project"), &["Write".into()]).unwrap();
        assert_eq!(kept(&layout, project).len(), 2, "each project has its own");
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0);
    }

    #[test]
    fn a_file_that_cannot_be_understood_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path().to_owned());
        let project = Path::new("/p");
        let path = layout.user_settings_for(project);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        for (content, expected) in [
            ("permissions = [", "is no readable settings file"),
            ("permissions = 1", "`permissions` is not a table"),
            ("permissions.allow = 2", "`permissions.allow` is not a list"),
        ] {
            std::fs::write(&path, content).unwrap();
            let error = keep_allowed(&layout, project, &["Write".into()]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
    }
}
