"""Parse tokens to a tree, by precedence: ?: || && relations, sums, products, unary, members.

Macros are recognized here: `has` and the methods that bind a variable are not functions.
"""

from __future__ import annotations

from functools import lru_cache

from volplane.apiserver.crd.cel.errors import CelCompileError
from volplane.apiserver.crd.cel.lexer import RESERVED, CelToken, tokens
from volplane.apiserver.crd.cel.nodes import (
    CallExpr,
    Expr,
    IdentExpr,
    IndexExpr,
    ListExpr,
    LiteralExpr,
    MacroExpr,
    MapExpr,
    SelectExpr,
)

# Binary operators by precedence.
_OPERATORS = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "%"))
_CONSTANTS = {"true": True, "false": False, "null": None}
# Number of bodies after the variable.
_MACROS = {
    "all": (1,),
    "exists": (1,),
    "exists_one": (1,),
    "map": (1, 2),
    "filter": (1,),
    "optMap": (1,),
    "optFlatMap": (1,),
}
_MAX_DEPTH = 100


@lru_cache(
    maxsize=256
)  # each version of a CRD repeats its rules, and each is parsed for validation and serving
def parse(source: str) -> Expr:
    """Raise CelCompileError."""
    return _Parser(tokens(source)).parse_all()


class _Parser:
    def __init__(self, found: list[CelToken]) -> None:
        self._tokens = found
        self._next = 0
        self._depth = 0

    # Words

    @property
    def _token(self) -> CelToken:
        return self._tokens[self._next]

    def _take(self) -> CelToken:
        token = self._token
        self._next += 1
        return token

    def _peek(self, *signs: str) -> bool:
        return self._token.kind == "sign" and self._token.text in signs

    def _accept(self, sign: str) -> bool:
        if self._peek(sign):
            self._next += 1
            return True
        return False

    def _expect(self, sign: str) -> CelToken:
        if not self._peek(sign):
            raise self._syntax_error(f"expecting '{sign}'")
        return self._take()

    def _syntax_error(self, wanted: str) -> CelCompileError:
        token = self._token
        return CelCompileError(f"Syntax error: mismatched input '{token.text}' {wanted}", token.at)

    # Expressions

    def parse_all(self) -> Expr:
        node = self._expression()
        if self._token.kind != "end":
            raise self._syntax_error("expecting <EOF>")
        return node

    def _expression(self) -> Expr:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise CelCompileError("expression recursion limit exceeded", self._token.at)
        condition = self._binary(0)
        if self._peek("?"):
            at = self._take().at
            then = self._binary(0)
            self._expect(":")
            condition = CallExpr(at, "_?_:_", None, (condition, then, self._expression()))
        self._depth -= 1
        return condition

    def _binary(self, level: int) -> Expr:
        """Parse a chain of left-associative operators of one level of precedence."""
        if level == len(_OPERATORS):
            return self._unary()
        expr = self._binary(level + 1)
        while self._token.kind in ("sign", "word") and self._token.text in _OPERATORS[level]:
            token = self._take()
            function = "@in" if token.text == "in" else f"_{token.text}_"
            expr = CallExpr(token.at, function, None, (expr, self._binary(level + 1)))
        return expr

    def _unary(self) -> Expr:
        if self._peek("!"):
            at = self._take().at
            return CallExpr(at, "!_", None, (self._nested_unary(),))
        if self._peek("-"):
            at = self._take().at
            return self._negative(at, self._nested_unary())
        return self._member()

    def _nested_unary(self) -> Expr:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise CelCompileError("expression recursion limit exceeded", self._token.at)
        node = self._unary()
        self._depth -= 1
        return node

    @staticmethod
    def _negative(at: int, node: Expr) -> Expr:
        if isinstance(node, LiteralExpr) and type(node.value) in (int, float):
            return LiteralExpr(at, -node.value)
        return CallExpr(at, "-_", None, (node,))

    # Members

    def _member(self) -> Expr:
        node = self._primary()
        while True:
            if self._peek(".", ".?"):
                node = self._after_dot(node, self._take())
            elif self._peek("[", "[?"):
                token = self._take()
                index = self._expression()
                self._expect("]")
                node = IndexExpr(token.at, node, index, optional=token.text == "[?")
            else:
                return node

    def _after_dot(self, node: Expr, dot: CelToken) -> Expr:
        if self._token.kind != "word":
            raise self._syntax_error("expecting IDENTIFIER")
        name = self._take().text
        if dot.text == ".?":
            return SelectExpr(dot.at, node, name, optional=True)
        if not self._peek("("):
            return SelectExpr(dot.at, node, name)
        at = self._take().at
        args = self._arguments(")")
        if name in _MACROS and len(args) - 1 in _MACROS[name]:
            return self._macro(at, name, node, args)
        return CallExpr(at, name, node, args)

    @staticmethod
    def _macro(at: int, name: str, target: Expr, args: tuple[Expr, ...]) -> Expr:
        variable = args[0]
        if not isinstance(variable, IdentExpr):
            raise CelCompileError("argument must be a simple name", variable.at)
        return MacroExpr(at, name, target, variable.name, args[1:])

    def _arguments(self, end: str) -> tuple[Expr, ...]:
        args: list[Expr] = []
        while not self._accept(end):
            if args:
                self._expect(",")
                if self._accept(end):  # a trailing comma
                    break
            args.append(self._expression())
        return tuple(args)

    def _primary(self) -> Expr:
        token = self._take()
        if token.kind == "value":
            return LiteralExpr(token.at, token.value)
        if token.kind == "word":
            return self._identifier(token)
        if token.kind == "sign" and token.text == "(":
            node = self._expression()
            self._expect(")")
            return node
        if token.kind == "sign" and token.text == "[":
            return ListExpr(token.at, self._arguments("]"))
        if token.kind == "sign" and token.text == "{":
            return self._entries(token.at)
        self._next -= 1
        raise self._syntax_error("expecting an expression")

    def _identifier(self, token: CelToken) -> Expr:
        if token.text in _CONSTANTS:
            return LiteralExpr(token.at, _CONSTANTS[token.text])
        if token.text in RESERVED or token.text == "in":
            raise CelCompileError(f"Syntax error: reserved identifier: {token.text}", token.at)
        if not self._peek("("):
            return IdentExpr(token.at, token.text)
        at = self._take().at
        args = self._arguments(")")
        if token.text != "has":
            return CallExpr(at, token.text, None, args)
        if len(args) != 1 or not isinstance(args[0], SelectExpr) or args[0].optional:
            raise CelCompileError("invalid argument to has() macro", at)
        return SelectExpr(at, args[0].operand, args[0].field, test=True)

    def _entries(self, at: int) -> Expr:
        entries: list[tuple[Expr, Expr]] = []
        while not self._accept("}"):
            if entries:
                self._expect(",")
                if self._accept("}"):
                    break
            key = self._expression()
            self._expect(":")
            entries.append((key, self._expression()))
        return MapExpr(at, tuple(entries))
