//! The schema that a container file carries, resolved into nested nodes.

use std::collections::HashMap;

use serde_json::Value;

use crate::error::{Error, Result};

/// Deepest nesting and most nodes of a schema; manifests have 5 and some 60.
const MAX_SCHEMA_DEPTH: usize = 32;
const MAX_NODES: usize = 4096;

/// A type of the writer's schema.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Null,
    Boolean,
    /// `int` and `long`, which are encoded alike.
    Long,
    Float,
    Double,
    /// `bytes` and `string`, which are encoded alike.
    Bytes,
    Fixed(usize),
    Array(Box<Node>),
    Map(Box<Node>),
    Union(Vec<Node>),
    Record(Vec<(String, Node)>),
}

/// Reads a schema's JSON.
pub(super) fn parse(json: &[u8]) -> Result<Node> {
    let value: Value = serde_json::from_slice(json).map_err(|e| bad(e.to_string()))?;
    let mut parser = Parser {
        named: HashMap::new(),
        node_count: 0,
    };
    parser.parse(&value, 0)
}

struct Parser {
    /// Named types met so far, by name without namespace: the files at hand never repeat one.
    named: HashMap<String, Node>,
    node_count: usize,
}

impl Parser {
    fn parse(&mut self, value: &Value, depth: usize) -> Result<Node> {
        self.node_count += 1;
        if depth > MAX_SCHEMA_DEPTH || self.node_count > MAX_NODES {
            return Err(bad("schema is too large"));
        }
        match value {
            Value::String(name) => self.by_name(name),
            Value::Array(branches) => {
                let branches = branches.iter().map(|branch| self.parse(branch, depth + 1));
                Ok(Node::Union(branches.collect::<Result<_>>()?))
            }
            Value::Object(object) => {
                let part = |key: &str| {
                    object
                        .get(key)
                        .ok_or_else(|| bad(format!("no `{key}` in schema")))
                };
                match part("type")?.as_str() {
                    Some("record") => self.record(value, depth),
                    Some("array") => Ok(Node::Array(Box::new(
                        self.parse(part("items")?, depth + 1)?,
                    ))),
                    Some("map") => Ok(Node::Map(Box::new(self.parse(part("values")?, depth + 1)?))),
                    Some("fixed") => {
                        let size = part("size")?
                            .as_u64()
                            .and_then(|size| usize::try_from(size).ok());
                        let node = Node::Fixed(size.ok_or_else(|| bad("size of a fixed"))?);
                        self.name(value, &node);
                        Ok(node)
                    }
                    Some("enum") => {
                        self.name(value, &Node::Long);
                        Ok(Node::Long)
                    }
                    Some(name) => self.by_name(name),
                    None => self.parse(part("type")?, depth + 1),
                }
            }
            _ => Err(bad("schema is no type")),
        }
    }

    fn record(&mut self, value: &Value, depth: usize) -> Result<Node> {
        let fields = value
            .get("fields")
            .and_then(Value::as_array)
            .ok_or_else(|| bad("a record has no fields"))?;
        let mut nodes = Vec::with_capacity(fields.len());
        for field in fields {
            let name = field.get("name").and_then(Value::as_str);
            let name = name.ok_or_else(|| bad("a field has no name"))?;
            let kind = field
                .get("type")
                .ok_or_else(|| bad("a field has no type"))?;
            nodes.push((name.to_owned(), self.parse(kind, depth + 1)?));
        }
        let node = Node::Record(nodes);
        self.name(value, &node);
        Ok(node)
    }

    fn name(&mut self, value: &Value, node: &Node) {
        if let Some(name) = value.get("name").and_then(Value::as_str) {
            self.named
                .insert(simple_name(name).to_owned(), node.clone());
        }
    }

    fn by_name(&mut self, name: &str) -> Result<Node> {
        Ok(match name {
            "null" => Node::Null,
            "boolean" => Node::Boolean,
            "int" | "long" => Node::Long,
            "float" => Node::Float,
            "double" => Node::Double,
            "bytes" | "string" => Node::Bytes,
            name => {
                let found = self.named.get(simple_name(name));
                let node = found
                    .cloned()
                    .ok_or_else(|| bad(format!("unknown type `{name}`")))?;
                self.node_count += count(&node);
                if self.node_count > MAX_NODES {
                    return Err(bad("schema is too large"));
                }
                node
            }
        })
    }
}

fn simple_name(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn count(node: &Node) -> usize {
    1 + match node {
        Node::Array(inner) | Node::Map(inner) => count(inner),
        Node::Union(branches) => branches.iter().map(count).sum(),
        Node::Record(fields) => fields.iter().map(|(_, field)| count(field)).sum(),
        _ => 0,
    }
}

fn bad(reason: impl Into<String>) -> Error {
    Error::malformed("Avro file", reason)
}
