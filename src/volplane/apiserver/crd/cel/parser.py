"""From words to a tree, by precedence: ?: || && relations, sums, products, unary, members.

Macros are recognised here, as in the language: `has` and the methods that bind a variable are not functions.
"""

from __future__ import annotations

from functools import lru_cache

from volplane.apiserver.crd.cel.errors import Flaw
from volplane.apiserver.crd.cel.lexer import RESERVED, Token, tokens
from volplane.apiserver.crd.cel.nodes import Call, Entries, Ident, Index, Items, Literal, Macro, Node, Select

_RELATIONS = frozenset({"==", "!=", "<", "<=", ">", ">="})
_CONSTANTS = {"true": True, "false": False, "null": None}
# How many bodies follow the variable.
_MACROS = {
    "all": (1,),
    "exists": (1,),
    "exists_one": (1,),
    "map": (1, 2),
    "filter": (1,),
    "optMap": (1,),
    "optFlatMap": (1,),
}
_DEEPEST = 100


@lru_cache(maxsize=256)  # a rule stands in every version of its kind, is checked first, and then served
def parse(source: str) -> Node:
    """Raises Flaw."""
    return _Parser(tokens(source)).whole()


class _Parser:
    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._next = 0
        self._depth = 0

    # Words

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._token
        self._next += 1
        return token

    def _sees(self, *signs: str) -> bool:
        return self._token.kind == "sign" and self._token.text in signs

    def _accept(self, sign: str) -> bool:
        if self._sees(sign):
            self._next += 1
            return True
        return False

    def _expect(self, sign: str) -> Token:
        if not self._sees(sign):
            raise self._unexpected(f"expecting '{sign}'")
        return self._take()

    def _unexpected(self, wanted: str) -> Flaw:
        token = self._token
        return Flaw(f"Syntax error: mismatched input '{token.text}' {wanted}", token.at)

    # Expressions

    def whole(self) -> Node:
        node = self._expression()
        if self._token.kind != "end":
            raise self._unexpected("expecting <EOF>")
        return node

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Flaw("expression recursion limit exceeded", self._token.at)
        condition = self._or()
        if self._sees("?"):
            at = self._take().at
            then = self._or()
            self._expect(":")
            condition = Call(at, "_?_:_", None, (condition, then, self._expression()))
        self._depth -= 1
        return condition

    def _or(self) -> Node:
        node = self._and()
        while self._sees("||"):
            at = self._take().at
            node = Call(at, "_||_", None, (node, self._and()))
        return node

    def _and(self) -> Node:
        node = self._relation()
        while self._sees("&&"):
            at = self._take().at
            node = Call(at, "_&&_", None, (node, self._relation()))
        return node

    def _relation(self) -> Node:
        node = self._sum()
        while self._sees(*_RELATIONS) or (self._token.kind == "word" and self._token.text == "in"):
            token = self._take()
            function = "@in" if token.text == "in" else f"_{token.text}_"
            node = Call(token.at, function, None, (node, self._sum()))
        return node

    def _sum(self) -> Node:
        node = self._product()
        while self._sees("+", "-"):
            token = self._take()
            node = Call(token.at, f"_{token.text}_", None, (node, self._product()))
        return node

    def _product(self) -> Node:
        node = self._unary()
        while self._sees("*", "/", "%"):
            token = self._take()
            node = Call(token.at, f"_{token.text}_", None, (node, self._unary()))
        return node

    def _unary(self) -> Node:
        if self._sees("!"):
            at = self._take().at
            return Call(at, "!_", None, (self._nested_unary(),))
        if self._sees("-"):
            at = self._take().at
            return self._negative(at, self._nested_unary())
        return self._member()

    def _nested_unary(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Flaw("expression recursion limit exceeded", self._token.at)
        node = self._unary()
        self._depth -= 1
        return node

    @staticmethod
    def _negative(at: int, node: Node) -> Node:
        if isinstance(node, Literal) and type(node.value) in (int, float):
            return Literal(at, -node.value)
        return Call(at, "-_", None, (node,))

    # Members

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if self._sees(".", ".?"):
                node = self._after_dot(node, self._take())
            elif self._sees("[", "[?"):
                token = self._take()
                index = self._expression()
                self._expect("]")
                node = Index(token.at, node, index, optional=token.text == "[?")
            else:
                return node

    def _after_dot(self, node: Node, dot: Token) -> Node:
        if self._token.kind != "word":
            raise self._unexpected("expecting IDENTIFIER")
        name = self._take().text
        if dot.text == ".?":
            return Select(dot.at, node, name, optional=True)
        if not self._sees("("):
            return Select(dot.at, node, name)
        at = self._take().at
        args = self._arguments(")")
        if name in _MACROS and len(args) - 1 in _MACROS[name]:
            return self._macro(at, name, node, args)
        return Call(at, name, node, args)

    @staticmethod
    def _macro(at: int, name: str, target: Node, args: tuple[Node, ...]) -> Node:
        variable = args[0]
        if not isinstance(variable, Ident):
            raise Flaw("argument must be a simple name", variable.at)
        return Macro(at, name, target, variable.name, args[1:])

    def _arguments(self, end: str) -> tuple[Node, ...]:
        args: list[Node] = []
        while not self._accept(end):
            if args:
                self._expect(",")
                if self._accept(end):  # a comma may stand before the end
                    break
            args.append(self._expression())
        return tuple(args)

    def _primary(self) -> Node:
        token = self._take()
        if token.kind == "value":
            return Literal(token.at, token.value)
        if token.kind == "word":
            return self._named(token)
        if token.kind == "sign" and token.text == "(":
            node = self._expression()
            self._expect(")")
            return node
        if token.kind == "sign" and token.text == "[":
            return Items(token.at, self._arguments("]"))
        if token.kind == "sign" and token.text == "{":
            return self._entries(token.at)
        self._next -= 1
        raise self._unexpected("expecting an expression")

    def _named(self, token: Token) -> Node:
        if token.text in _CONSTANTS:
            return Literal(token.at, _CONSTANTS[token.text])
        if token.text in RESERVED or token.text == "in":
            raise Flaw(f"Syntax error: reserved identifier: {token.text}", token.at)
        if not self._sees("("):
            return Ident(token.at, token.text)
        at = self._take().at
        args = self._arguments(")")
        if token.text != "has":
            return Call(at, token.text, None, args)
        if len(args) != 1 or not isinstance(args[0], Select) or args[0].optional:
            raise Flaw("invalid argument to has() macro", at)
        return Select(at, args[0].operand, args[0].field, test=True)

    def _entries(self, at: int) -> Node:
        entries: list[tuple[Node, Node]] = []
        while not self._accept("}"):
            if entries:
                self._expect(",")
                if self._accept("}"):
                    break
            key = self._expression()
            self._expect(":")
            entries.append((key, self._expression()))
        return Entries(at, tuple(entries))
