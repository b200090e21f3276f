//! The types in docs/json.md, in a part of the notation of TypeScript, and values compared with them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// A type expression.
#[derive(Debug, Clone)]
enum Type {
    /// A primitive, or the name of a declaration.
    Name(String),
    /// A string with this value.
    Literal(String),
    Array(Box<Type>),
    Object(BTreeMap<String, Type>),
    Union(Vec<Type>),
}

impl Type {
    fn is_null(&self) -> bool {
        matches!(self, Self::Name(name) if name == "null")
    }
}

/// Difference of a value from its type.
struct Mismatch(String);

/// All declarations of a document.
#[derive(Debug)]
pub struct Types(BTreeMap<String, Type>);

impl Types {
    /// Parses the blocks of a document, which may use each other's types.
    pub fn parse(blocks: &[&str]) -> Self {
        let mut parser = Parser { tokens: blocks.iter().flat_map(|block| tokens(block)).collect(), next: 0 };
        let mut types = Self(BTreeMap::new());
        while parser.peek().is_some() {
            let (name, declared) = parser.declaration(&types);
            assert!(types.0.insert(name.clone(), declared).is_none(), "{name} is declared twice");
        }
        types
    }

    /// Compares a value with the type of this name. A member that is not described must not be there.
    pub fn check(&self, value: &Value, name: &str) {
        if let Err(mismatch) = self.matches(value, self.declared(name), name) {
            panic!("{}", mismatch.0);
        }
    }

    fn declared(&self, name: &str) -> &Type {
        self.0.get(name).unwrap_or_else(|| panic!("docs/json.md has no type {name}"))
    }

    fn matches(&self, value: &Value, expected: &Type, at: &str) -> Result<(), Mismatch> {
        let is = |fits: bool| {
            if fits { Ok(()) } else { Err(Mismatch(format!("{at} is not of type {expected:?}: {value}"))) }
        };
        match expected {
            Type::Name(name) => match name.as_str() {
                "string" => is(value.is_string()),
                "boolean" => is(value.is_boolean()),
                "number" => is(value.is_number()),
                // Declared as a number, and more than that.
                "int" => is(value.is_i64() || value.is_u64()),
                "object" => is(value.is_object()),
                "null" => is(value.is_null()),
                name => self.matches(value, self.declared(name), at),
            },
            Type::Literal(literal) => is(value.as_str() == Some(literal)),
            Type::Array(item) => {
                let Some(items) = value.as_array() else { return is(false) };
                let mut numbered = items.iter().enumerate();
                numbered.try_for_each(|(n, value)| self.matches(value, item, &format!("{at}[{n}]")))
            }
            Type::Object(members) => {
                let Some(object) = value.as_object() else { return is(false) };
                let (found, described): (BTreeSet<_>, BTreeSet<_>) =
                    (object.keys().collect(), members.keys().collect());
                if found != described {
                    return Err(Mismatch(format!("{at} has the members {found:?}, not {described:?}")));
                }
                let mut members = members.iter();
                members.try_for_each(|(name, member)| {
                    self.matches(&object[name], member, &format!("{at}.{name}"))
                })
            }
            Type::Union(types) => {
                let mut mismatch = is(false);
                for one in types {
                    match self.matches(value, one, at) {
                        Ok(()) => return Ok(()),
                        // The reason is inside of the value, if it has an inside.
                        Err(inner) if value.is_object() && !one.is_null() => mismatch = Err(inner),
                        Err(_) => {}
                    }
                }
                mismatch
            }
        }
    }
}

/// Returns names, strings in quotes, and punctuation, without comments.
fn tokens(block: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in block.lines() {
        let mut rest = line.split("//").next().unwrap_or_default().trim();
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let length = match first {
                '"' => 2 + rest[1..].find('"').expect("the end of a string"),
                _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                _ => first.len_utf8(),
            };
            found.push(&rest[..length]);
            rest = rest[length..].trim_start();
        }
    }
    found
}

struct Parser<'a> {
    tokens: Vec<&'a str>,
    next: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.next).copied()
    }

    fn token(&mut self) -> &'a str {
        self.next += 1;
        self.tokens.get(self.next - 1).expect("another token")
    }

    fn takes(&mut self, token: &str) -> bool {
        let found = self.peek() == Some(token);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, token: &str) {
        let before = self.next.saturating_sub(6);
        assert!(self.takes(token), "{token} is missing after {:?}", &self.tokens[before..self.next]);
    }

    /// `type NAME = TYPE;` or `interface NAME extends NAMES { MEMBERS }`.
    fn declaration(&mut self, types: &Types) -> (String, Type) {
        if self.takes("type") {
            let name = self.token().to_owned();
            self.expect("=");
            let alias = self.union();
            self.expect(";");
            return (name, alias);
        }
        self.expect("interface");
        let name = self.token().to_owned();
        let mut members = BTreeMap::new();
        if self.takes("extends") {
            loop {
                let Type::Object(inherited) = types.declared(self.token()).clone() else {
                    panic!("{name} extends a type without members")
                };
                members.extend(inherited);
                if !self.takes(",") {
                    break;
                }
            }
        }
        members.extend(self.members());
        (name, Type::Object(members))
    }

    fn members(&mut self) -> BTreeMap<String, Type> {
        let mut members = BTreeMap::new();
        self.expect("{");
        while !self.takes("}") {
            let name = self.token().to_owned();
            self.expect(":");
            let of_member = self.union();
            self.expect(";");
            assert!(members.insert(name.clone(), of_member).is_none(), "{name} is described twice");
        }
        members
    }

    fn union(&mut self) -> Type {
        let mut types = vec![self.array()];
        while self.takes("|") {
            types.push(self.array());
        }
        if types.len() == 1 { types.remove(0) } else { Type::Union(types) }
    }

    fn array(&mut self) -> Type {
        let mut item = match self.peek().expect("a type") {
            "{" => Type::Object(self.members()),
            "(" => {
                self.expect("(");
                let inner = self.union();
                self.expect(")");
                inner
            }
            literal if literal.starts_with('"') => Type::Literal(self.token().trim_matches('"').to_owned()),
            _ => Type::Name(self.token().to_owned()),
        };
        while self.takes("[") {
            self.expect("]");
            item = Type::Array(Box::new(item));
        }
        item
    }
}

#[test]
fn a_value_that_is_not_of_its_type_is_found() {
    let types = Types::parse(&[
        "type Kind = \"a\" | \"b\";   // \"c\" is not\ninterface Base { id: int; }",
        "interface Row extends Base { kind: Kind | null; parts: { s: number; }[]; }",
    ]);
    types.check(&serde_json::json!({"id": 1, "kind": "b", "parts": [{"s": 0.5}]}), "Row");
    types.check(&serde_json::json!({"id": 1, "kind": null, "parts": []}), "Row");
    for wrong in [
        serde_json::json!({"id": 1.5, "kind": null, "parts": []}),
        serde_json::json!({"id": 1, "kind": "c", "parts": []}),
        serde_json::json!({"id": 1, "kind": "a", "parts": [{"s": "0.5"}]}),
        serde_json::json!({"id": 1, "kind": "a", "parts": [], "more": 0}),
        serde_json::json!({"kind": "a", "parts": []}),
    ] {
        assert!(types.matches(&wrong, types.declared("Row"), "row").is_err(), "{wrong}");
    }
}
