//! The system's own place for keys: on Linux the kernel's key rings, which need no service and no file, and forget
//! everything when the machine restarts.

use std::path::{Path, PathBuf};

use secrecy::SecretString;

/// Keys of one storage root, by the name of the provider.
#[derive(Clone, Debug)]
pub struct KeyStore {
    root: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum KeyStoreError {
    #[error("this system's key store is not supported; give the key in a file: `api_key_file` in [providers.{name}] of settings.toml")]
    Unsupported { name: String },
    #[error("the kernel's key rings cannot be used here: {reason}; give the key in a file or in the environment")]
    Unavailable { reason: String },
    #[error("no key of `{name}` is stored")]
    NotStored { name: String },
}

/// Under this name lies the key of a search endpoint.
pub const WEB_SEARCH: &str = "web-search";

/// How long a stored key lasts, for people.
pub const LASTS: &str = "kept in the kernel's memory: it is gone after a restart of the machine, and after some days without use";

impl KeyStore {
    pub fn of(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The stored key; `None` as well where there is no store that can be used.
    pub fn get(&self, name: &str) -> Option<SecretString> {
        self.read(name).ok().flatten()
    }

    #[cfg(target_os = "linux")]
    fn entry(&self, name: &str) -> Result<keyring_core::Entry, KeyStoreError> {
        use keyring_core::api::CredentialStoreApi;
        use linux_keyutils::{KeyRing, KeyRingIdentifier};
        // A process that no login has given a session's key ring (in containers, services) gets one of its own, into which
        // the user's persistent one is linked; an existing one stays as it is. What fails here is told by the next step.
        let _ = KeyRing::from_special_id(KeyRingIdentifier::Session, true);
        let store = linux_keyutils_keyring_store::Store::new().map_err(|error| unavailable(&error))?;
        store.build(&format!("zapmyco:{}", self.root.display()), name, None).map_err(|error| unavailable(&error))
    }

    #[cfg(target_os = "linux")]
    fn read(&self, name: &str) -> Result<Option<SecretString>, KeyStoreError> {
        match self.entry(name)?.get_password() {
            Ok(key) => Ok(Some(SecretString::from(key))),
            Err(keyring_core::Error::NoEntry) => Ok(None),
            Err(error) => Err(unavailable(&error)),
        }
    }

    #[cfg(target_os = "linux")]
    pub fn set(&self, name: &str, key: &SecretString) -> Result<(), KeyStoreError> {
        use secrecy::ExposeSecret;
        self.entry(name)?.set_password(key.expose_secret()).map_err(|error| unavailable(&error))
    }

    #[cfg(target_os = "linux")]
    pub fn unset(&self, name: &str) -> Result<(), KeyStoreError> {
        match self.entry(name)?.delete_credential() {
            Ok(()) => Ok(()),
            Err(keyring_core::Error::NoEntry) => Err(KeyStoreError::NotStored { name: name.to_owned() }),
            Err(error) => Err(unavailable(&error)),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn read(&self, _name: &str) -> Result<Option<SecretString>, KeyStoreError> {
        let _ = &self.root;
        Ok(None)
    }

    #[cfg(not(target_os = "linux"))]
    pub fn set(&self, name: &str, _key: &SecretString) -> Result<(), KeyStoreError> {
        Err(KeyStoreError::Unsupported { name: name.to_owned() })
    }

    #[cfg(not(target_os = "linux"))]
    pub fn unset(&self, name: &str) -> Result<(), KeyStoreError> {
        Err(KeyStoreError::Unsupported { name: name.to_owned() })
    }
}

#[cfg(target_os = "linux")]
fn unavailable(error: &keyring_core::Error) -> KeyStoreError {
    KeyStoreError::Unavailable { reason: error.to_string() }
}
