//! Shared AWS profiles: keys, region and endpoint from `~/.aws/credentials` and `~/.aws/config`.
//!
//! Read by ourselves, for the store's client does not, and the AWS library that does is larger than
//! all of this crate's dependencies. What stands for other ways to get keys (`credential_process`,
//! `role_arn`, `sso_…`) is refused in so many words.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::Mutex;

/// How often a request is tried, as other tools read it.
pub(super) const MAX_ATTEMPTS: &str = "AWS_MAX_ATTEMPTS";

/// The section that is used if none is named.
const DEFAULT: &str = "default";

/// Keys by which a profile gets its credentials in ways that are not read here.
const OTHER_WAYS: [&str; 5] = [
    "credential_process",
    "role_arn",
    "sso_session",
    "sso_start_url",
    "web_identity_token_file",
];

type Section = BTreeMap<String, String>;

/// The variables of the process that matter here.
#[derive(Clone)]
pub(super) struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// Those of this process.
    pub(super) fn of_process() -> Self {
        let wanted = |name: &str| name.starts_with("AWS_") || name == "HOME";
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| wanted(name))?;
            Some((name, value.into_string().ok()?))
        });
        Self::of(variables.collect())
    }

    pub(super) fn of(variables: BTreeMap<String, String>) -> Self {
        Self { variables }
    }

    /// The variables that the store's client may know.
    pub(super) fn aws_variables(&self) -> impl Iterator<Item = (&str, &str)> {
        let variables = self.variables.iter();
        variables
            .filter(|(name, _)| name.starts_with("AWS_"))
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The profile that is asked for by name.
    pub(super) fn profile(&self) -> Option<String> {
        let named = self.get("AWS_PROFILE").or(self.get("AWS_DEFAULT_PROFILE"));
        named.map(str::to_owned)
    }

    pub(super) fn max_attempts(&self) -> Option<&str> {
        self.get(MAX_ATTEMPTS)
    }

    fn get(&self, name: &str) -> Option<&str> {
        let value = self.variables.get(name).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    fn file(&self, variable: &str, default: &str) -> Option<PathBuf> {
        match self.get(variable) {
            Some(path) => Some(PathBuf::from(path)),
            None => Some(Path::new(self.get("HOME")?).join(".aws").join(default)),
        }
    }
}

/// What the shared files say of one profile.
pub(super) struct Profile {
    name: String,
    files: Vec<PathBuf>,
    section: Section,
}

impl Profile {
    /// The profile of that name, or the default one if none is named; `None` if there is no default
    /// one. `Err` says in a sentence what is wrong.
    pub(super) fn load(
        environment: &Environment,
        name: Option<&str>,
    ) -> Result<Option<Self>, String> {
        let config = environment.file("AWS_CONFIG_FILE", "config");
        let credentials = environment.file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        // What both say is taken from the credentials.
        let files: Vec<PathBuf> = config.into_iter().chain(credentials).collect();
        let wanted = name.unwrap_or(DEFAULT);
        let section = read_section(&files, wanted)?;
        match (section, name) {
            (Some(section), _) => Ok(Some(Self {
                name: wanted.to_owned(),
                files,
                section,
            })),
            (None, None) => Ok(None),
            (None, Some(_)) => {
                let files: Vec<_> = files.iter().map(|f| f.display().to_string()).collect();
                Err(format!(
                    "there is no profile `{wanted}` in {}",
                    files.join(" or ")
                ))
            }
        }
    }

    pub(super) fn region(&self) -> Option<&str> {
        self.section.get("region").map(String::as_str)
    }

    pub(super) fn endpoint_url(&self) -> Option<&str> {
        self.section.get("endpoint_url").map(String::as_str)
    }

    /// Its keys, which follow the files; `None` if it has none.
    pub(super) fn into_credentials(self) -> Result<Option<ProfileCredentials>, String> {
        let other = OTHER_WAYS
            .iter()
            .find(|key| self.section.contains_key(**key));
        let name = &self.name;
        if let Some(credential) = credential_of(&self.section) {
            let stamp = stamp_of(&self.files);
            return Ok(Some(ProfileCredentials {
                name: self.name,
                files: self.files,
                known: Mutex::new((stamp, Arc::new(credential))),
            }));
        }
        match other {
            Some(other) => Err(format!(
                "profile `{name}` gets its keys by `{other}`, which is not read here; put them into \
                 the environment (`aws configure export-credentials --format env`)"
            )),
            None if self.section.contains_key("aws_access_key_id") => {
                Err(format!("profile `{name}` has no aws_secret_access_key"))
            }
            None => Ok(None),
        }
    }
}

/// Keys of a profile. Its files are looked at before each use, and read again when they have
/// changed: whoever renews short-lived keys writes them there.
pub(super) struct ProfileCredentials {
    name: String,
    files: Vec<PathBuf>,
    known: Mutex<(Stamp, Arc<AwsCredential>)>,
}

/// When each file was last written, and its size.
type Stamp = Vec<Option<(SystemTime, u64)>>;

impl fmt::Debug for ProfileCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProfileCredentials")
            .field("profile", &self.name)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl CredentialProvider for ProfileCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let (files, name) = (self.files.clone(), self.name.clone());
        let known_stamp = self.known.lock().0.clone();
        let look = tokio::task::spawn_blocking(move || {
            let stamp = stamp_of(&files);
            let is_news = stamp != known_stamp;
            is_news.then(|| (stamp, read_section(&files, &name)))
        });
        let looked = look.await;
        let looked = looked.map_err(|source| object_store::Error::JoinError { source })?;
        let Some((stamp, section)) = looked else {
            return Ok(Arc::clone(&self.known.lock().1));
        };
        let section = section.map_err(generic)?;
        // A file that is just being written may have no keys for a moment.
        let Some(credential) = section.as_ref().and_then(credential_of) else {
            tracing::warn!(
                profile = self.name,
                "the profile has no keys now; the old ones are used"
            );
            return Ok(Arc::clone(&self.known.lock().1));
        };
        let credential = Arc::new(credential);
        *self.known.lock() = (stamp, Arc::clone(&credential));
        tracing::info!(profile = self.name, "the profile's keys were read again");
        Ok(credential)
    }
}

fn generic(reason: String) -> object_store::Error {
    object_store::Error::Generic {
        store: "S3",
        source: reason.into(),
    }
}

fn stamp_of(files: &[PathBuf]) -> Stamp {
    let stamp = |file: &PathBuf| {
        let found = std::fs::metadata(file).ok()?;
        Some((found.modified().ok()?, found.len()))
    };
    files.iter().map(stamp).collect()
}

fn credential_of(section: &Section) -> Option<AwsCredential> {
    let get = |key: &str| section.get(key).filter(|value| !value.is_empty()).cloned();
    Some(AwsCredential {
        key_id: get("aws_access_key_id")?,
        secret_key: get("aws_secret_access_key")?,
        token: get("aws_session_token"),
    })
}

/// What the files say of a profile, later ones over earlier; `None` if none has it. A file that is
/// not there says nothing; one that can't be read is an error that names it.
fn read_section(files: &[PathBuf], name: &str) -> Result<Option<Section>, String> {
    let mut merged: Option<Section> = None;
    for file in files {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(format!("{} can't be read: {e}", file.display())),
        };
        if let Some(section) = parse(&text).remove(name) {
            merged.get_or_insert_default().extend(section);
        }
    }
    Ok(merged)
}

/// The sections of such a file: `[NAME]` or `[profile NAME]`, then `key = value`. Indented lines
/// are parts of a value that is not read here.
fn parse(text: &str) -> BTreeMap<String, Section> {
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        if line.starts_with(char::is_whitespace) || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            let name = header.split_once(']').map(|(name, _)| name.trim());
            let name = name.map(|name| match name.split_once(char::is_whitespace) {
                Some(("profile", name)) => name.trim().trim_matches('"').to_owned(),
                // Such as `[sso-session NAME]`: no profile.
                Some(_) => String::new(),
                None => name.to_owned(),
            });
            current = name.filter(|name| !name.is_empty());
            if let Some(name) = &current {
                sections.entry(name.clone()).or_default();
            }
            continue;
        }
        let (Some(name), Some((key, value))) = (&current, line.split_once('=')) else {
            continue;
        };
        let value = [" #", " ;", "\t#", "\t;"]
            .iter()
            .fold(value, |value, mark| {
                value.split(mark).next().unwrap_or(value)
            });
        let section = sections.entry(name.clone()).or_default();
        section.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "# keys\n[default]\naws_access_key_id = AKD\naws_secret_access_key = s3cr=et#1 # mine\n\
        [other]\naws_access_key_id=AKO\naws_secret_access_key=other\naws_session_token = tok\n\
        [half]\naws_access_key_id = AKH\n";
    const CONFIG: &str = "[default]\nregion = eu-central-1\n[profile other]\nregion=us-west-2\n\
        s3 =\n  addressing_style = path\nendpoint_url = http://127.0.0.1:9000\n\
        [sso-session other]\nregion = nowhere\n[profile role]\nrole_arn = arn:x\nsource_profile = default\n";

    struct Home(tempfile::TempDir);

    impl Home {
        fn new() -> Self {
            let home = Self(tempfile::tempdir().unwrap());
            std::fs::create_dir(home.0.path().join(".aws")).unwrap();
            home.write("credentials", CREDENTIALS);
            home.write("config", CONFIG);
            home
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.0.path().join(".aws").join(name), text).unwrap();
        }

        fn environment(&self) -> Environment {
            let home = self.0.path().display().to_string();
            Environment::of(BTreeMap::from([("HOME".to_owned(), home)]))
        }

        fn load(&self, name: Option<&str>) -> Profile {
            Profile::load(&self.environment(), name).unwrap().unwrap()
        }
    }

    #[tokio::test]
    async fn keys_region_and_endpoint_come_from_both_files() {
        let home = Home::new();
        let default = home.load(None);
        assert_eq!(default.region(), Some("eu-central-1"));
        let keys = default.into_credentials().unwrap().unwrap();
        let keys = keys.get_credential().await.unwrap();
        assert_eq!(
            (keys.key_id.as_str(), keys.secret_key.as_str()),
            ("AKD", "s3cr=et#1")
        );
        let other = home.load(Some("other"));
        assert_eq!(other.region(), Some("us-west-2"));
        assert_eq!(other.endpoint_url(), Some("http://127.0.0.1:9000"));
        let keys = other.into_credentials().unwrap().unwrap();
        assert_eq!(
            keys.get_credential().await.unwrap().token.as_deref(),
            Some("tok")
        );
        let shown = format!("{keys:?}");
        assert!(shown.contains("other") && !shown.contains("AKO") && !shown.contains("tok"));
    }

    #[test]
    fn a_profile_that_cannot_be_used_says_why() {
        let home = Home::new();
        let error = |name| {
            let profile = Profile::load(&home.environment(), Some(name));
            profile
                .and_then(|p| p.unwrap().into_credentials().map(drop))
                .unwrap_err()
        };
        assert!(error("none").contains("no profile `none` in"));
        assert!(error("role").contains("`role_arn`"));
        assert!(error("half").contains("aws_secret_access_key"));
        let empty = Environment::of(BTreeMap::new());
        assert!(Profile::load(&empty, None).unwrap().is_none());
    }

    #[tokio::test]
    async fn fc_081_keys_that_were_renewed_in_the_file_are_used_from_the_next_request_on() {
        let home = Home::new();
        let keys = home
            .load(Some("other"))
            .into_credentials()
            .unwrap()
            .unwrap();
        let first = keys.get_credential().await.unwrap();
        assert_eq!(first.key_id, "AKO");
        // In the middle of being written it has none.
        home.write("credentials", "");
        assert_eq!(keys.get_credential().await.unwrap().key_id, "AKO");
        home.write(
            "credentials",
            "[other]\naws_access_key_id=AKNEW\naws_secret_access_key=renewed\n",
        );
        let renewed = keys.get_credential().await.unwrap();
        assert_eq!(
            (renewed.key_id.as_str(), renewed.token.as_deref()),
            ("AKNEW", None)
        );
    }
}
