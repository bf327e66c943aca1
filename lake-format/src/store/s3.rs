//! Warehouses in S3 and in stores that speak its protocol.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, RetryConfig, UploadPart,
};

use super::answer::explain;
use super::profile::{Environment, MAX_ATTEMPTS, Profile};
use super::unsupported;
use crate::error::{Error, Result as LakeResult};

/// How often a request is repeated by default, after its first try.
const MAX_RETRIES: usize = 8;

/// No request is repeated after this time, by default. Whoever waits for it tries again by itself,
/// and says so.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// Options of our own beside those of the store's client.
const MAX_RETRIES_OPTION: &str = "max_retries";
const RETRY_TIMEOUT_OPTION: &str = "retry_timeout";
const PROFILE_OPTION: &str = "aws_profile";

/// Opens the bucket of an `s3://BUCKET/PREFIX` address.
///
/// # Errors
/// [`Error::Unsupported`] naming the URL for an option or a profile that can't be used.
pub(super) fn open(
    url: &str,
    options: &BTreeMap<String, String>,
    environment: &Environment,
) -> LakeResult<Arc<dyn ObjectStore>> {
    let mut builder = AmazonS3Builder::new();
    for (name, value) in environment.aws_variables() {
        if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    let mut retry = RetryConfig {
        max_retries: MAX_RETRIES,
        retry_timeout: RETRY_TIMEOUT,
        ..RetryConfig::default()
    };
    if let Some(attempts) = environment.max_attempts() {
        retry.max_retries = number(url, MAX_ATTEMPTS, attempts)?.saturating_sub(1);
    }
    let mut profile = environment.profile();
    for (key, value) in options {
        match key.as_str() {
            MAX_RETRIES_OPTION => retry.max_retries = number(url, key, value)?,
            RETRY_TIMEOUT_OPTION => retry.retry_timeout = duration(url, key, value)?,
            PROFILE_OPTION => profile = Some(value.clone()),
            _ => {
                let no_option =
                    |_| unsupported(url, &format!("`{key}` is no option of an S3 store"));
                let key: AmazonS3ConfigKey = key.parse().map_err(no_option)?;
                builder = builder.with_config(key, value);
            }
        }
    }
    builder = with_profile(url, builder, profile.as_deref(), environment)?;
    let builder = builder
        .with_url(url)
        .with_retry(retry)
        .with_conditional_put(S3ConditionalPut::ETagMatch);
    let store = builder.build().map_err(|source| Error::Store {
        path: format!("warehouse `{url}`"),
        source,
    })?;
    Ok(Arc::new(S3Store { inner: store }))
}

/// Fills in from a shared profile what neither variables nor options say.
fn with_profile(
    url: &str,
    mut builder: AmazonS3Builder,
    name: Option<&str>,
    environment: &Environment,
) -> LakeResult<AmazonS3Builder> {
    let has = |builder: &AmazonS3Builder, key| builder.get_config_value(&key).is_some();
    let has_keys = has(&builder, AmazonS3ConfigKey::AccessKeyId)
        || has(&builder, AmazonS3ConfigKey::WebIdentityTokenFile);
    let found = Profile::load(environment, name);
    let Some(profile) = found.map_err(|reason| unsupported(url, &reason))? else {
        return Ok(builder);
    };
    if let Some(region) = profile.region()
        && !has(&builder, AmazonS3ConfigKey::Region)
        && !has(&builder, AmazonS3ConfigKey::DefaultRegion)
    {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = profile.endpoint_url()
        && !has(&builder, AmazonS3ConfigKey::Endpoint)
        && !has(&builder, AmazonS3ConfigKey::S3Endpoint)
    {
        builder = builder.with_endpoint(endpoint);
    }
    if has_keys {
        return Ok(builder);
    }
    let keys = profile.into_credentials();
    match keys.map_err(|reason| unsupported(url, &reason))? {
        Some(credentials) => Ok(builder.with_credentials(Arc::new(credentials))),
        None => Ok(builder),
    }
}

fn number(url: &str, key: &str, value: &str) -> LakeResult<usize> {
    let wrong = |_| unsupported(url, &format!("`{key}` cannot be `{value}`"));
    value.trim().parse().map_err(wrong)
}

fn duration(url: &str, key: &str, value: &str) -> LakeResult<Duration> {
    crate::options::parse_duration(value)
        .ok_or_else(|| unsupported(url, &format!("`{key}` cannot be `{value}`")))
}

/// A bucket whose errors say what the store answered and what to look at. Nothing secret is shown.
struct S3Store {
    inner: AmazonS3,
}

impl fmt::Display for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[async_trait]
impl ObjectStore for S3Store {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let put = self.inner.put_opts(path, payload, options).await;
        put.map_err(explain)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begun = self.inner.put_multipart_opts(path, options).await;
        let inner = begun.map_err(explain)?;
        Ok(Box::new(S3Upload { inner }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let got = self.inner.get_opts(path, options).await;
        got.map_err(explain)
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let deletes = self.inner.delete_stream(paths);
        deletes.map(|deleted| deleted.map_err(explain)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let objects = self.inner.list(prefix);
        objects.map(|object| object.map_err(explain)).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let objects = self.inner.list_with_offset(prefix, offset);
        objects.map(|object| object.map_err(explain)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let listed = self.inner.list_with_delimiter(prefix).await;
        listed.map_err(explain)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let copied = self.inner.copy_opts(from, to, options).await;
        copied.map_err(explain)
    }
}

/// An upload in parts of such a bucket.
#[derive(Debug)]
struct S3Upload {
    inner: Box<dyn MultipartUpload>,
}

#[async_trait]
impl MultipartUpload for S3Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let part = self.inner.put_part(data);
        Box::pin(async move { part.await.map_err(explain) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.inner.complete().await.map_err(explain)
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await.map_err(explain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_with(variables: &[(&str, &str)], options: &[(&str, &str)]) -> LakeResult<String> {
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let pairs = pairs.iter();
            pairs
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        let environment = Environment::of(pairs(variables));
        let store = open("s3://lake/prefix", &pairs(options), &environment)?;
        Ok(format!("{store:?} {store}"))
    }

    #[test]
    fn fc_086_what_is_shown_of_a_store_has_no_secret() {
        let variables = [
            ("AWS_ACCESS_KEY_ID", "AKIDSECRET"),
            ("AWS_SECRET_ACCESS_KEY", "hunter2"),
            ("AWS_SESSION_TOKEN", "tokensecret"),
        ];
        let shown = open_with(&variables, &[]).unwrap();
        for secret in ["AKIDSECRET", "hunter2", "tokensecret"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        let options = variables.map(|(k, v)| (k.to_ascii_lowercase(), v));
        let options: Vec<_> = options.iter().map(|(k, v)| (k.as_str(), *v)).collect();
        let shown = open_with(&[], &options).unwrap();
        assert!(!shown.contains("hunter2"), "{shown}");
        // Half a pair is refused without the half.
        let error = open_with(&variables[1..2], &[]).unwrap_err();
        assert!(
            !format!("{error} {error:?}").contains("hunter2"),
            "{error:?}"
        );
    }

    #[test]
    fn options_of_ours_and_of_the_client_are_read_and_others_refused() {
        let good = [
            ("aws_region", "eu-west-1"),
            ("max_retries", "3"),
            ("retry_timeout", "5 s"),
            ("timeout", "10s"),
        ];
        open_with(&[], &good).unwrap();
        for (key, value) in [
            ("max_retries", "-1"),
            ("retry_timeout", "soon"),
            ("nonsense", "1"),
        ] {
            let error = open_with(&[], &[(key, value)]).unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}`")), "{error}");
        }
        let error = open_with(&[], &[("aws_profile", "none")]).unwrap_err();
        assert!(error.to_string().contains("profile `none`"), "{error}");
    }
}
