"""A shop over public data: users, orders, products, and the tools that read and change them. `service.py` serves it.

A refusal changes nothing. `changes()` is what differs from the start.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

Record = dict[str, Any]

FOLDER = Path(os.environ.get("PERDURE_RETAIL_DATA", Path(__file__).parents[3] / "shared" / "data" / "retail"))


class RefusedError(Exception):
    """The service says no; nothing was changed."""


def load(name: str) -> Any:
    """One of the files; None where there is none."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


class Table:
    """Records that are copied when somebody first looks at them. `touched` are those that were, or differ already."""

    def __init__(self, start: Mapping[str, Record], touched: dict[str, Record], noun: str) -> None:
        self.start, self.touched, self._noun = start, touched, noun

    def get(self, id: str) -> Record:
        if id not in self.start:
            raise RefusedError(f"Error: {self._noun} not found")
        if id not in self.touched:
            self.touched[id] = copy.deepcopy(self.start[id])
        return self.touched[id]


class Start:
    """What every shop begins with."""

    def __init__(self) -> None:
        self.users: dict[str, Record] = load("users")
        self.orders: dict[str, Record] = load("orders")
        self.products: dict[str, Record] = load("products")


class Shop:
    """The records of one shop, and its tools. `users` and `orders` are those that differ from the start."""

    def __init__(self, start: Start, users: dict[str, Record], orders: dict[str, Record]) -> None:
        self.users, self.orders = Table(start.users, users, "user"), Table(start.orders, orders, "order")
        self.products = start.products

    @property
    def tables(self) -> dict[str, Table]:
        return {"users": self.users, "orders": self.orders}

    def changes(self) -> dict[tuple[str, ...], Any]:
        """Every place that differs from the start: its path, and what is there now."""
        found: dict[tuple[str, ...], Any] = {}
        for name, table in self.tables.items():
            for key, record in table.touched.items():
                _compare(table.start[key], record, (name, key), found)
        return found

    # ── reading ──────────────────────────────────────────────────────────────────────────────
    def user_by_email(self, email: str) -> str:
        return self._user_id(lambda user: user["email"].lower() == email.lower())

    def user_by_name(self, first_name: str, last_name: str, zip: str) -> str:
        wanted = (first_name.lower(), last_name.lower(), zip)
        return self._user_id(
            lambda user: (
                user["name"]["first_name"].lower(), user["name"]["last_name"].lower(), user["address"]["zip"]
            ) == wanted
        )  # fmt: skip

    def _user_id(self, fits: Callable[[Record], bool]) -> str:
        for user_id in self.users.start:
            if fits(self.users.touched.get(user_id, self.users.start[user_id])):
                return user_id
        raise RefusedError("Error: user not found")

    def user(self, user_id: str) -> Record:
        return self.users.get(user_id)

    def order(self, order_id: str) -> Record:
        return self.orders.get(order_id)

    def product_types(self) -> list[str]:
        return sorted(product["name"] for product in self.products.values())

    def calculate(self, expression: str) -> str:
        """Sums are no affair of this service: it is told what was asked."""
        return expression

    def transfer(self, summary: str) -> str:
        return "Transfer successful"

    def product(self, product_id: str) -> Record:
        if product_id not in self.products:
            raise RefusedError("Error: product not found")
        return self.products[product_id]

    # ── writing ──────────────────────────────────────────────────────────────────────────────
    def cancel(self, order_id: str, reason: str) -> None:
        order = self._order(order_id, "pending", "Error: non-pending order cannot be cancelled")
        if reason not in {"no longer needed", "ordered by mistake"}:
            raise RefusedError("Error: invalid reason")
        refunds = list[Record]()
        for payment in order["payment_history"]:
            method = payment["payment_method_id"]
            refunds.append(_entry("refund", payment["amount"], method))
            self._move(order["user_id"], method, payment["amount"])
        order["status"], order["cancel_reason"] = "cancelled", reason
        order["payment_history"].extend(refunds)

    def modify_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> None:
        order = self._order(order_id, "pending", "Error: non-pending order cannot be modified")
        pairs = self._pairs(order, item_ids, new_item_ids)
        difference = sum(new["price"] - item["price"] for item, new in pairs)
        self._must_cover(order, payment_method_id, difference, "to pay for the new item")
        kind = "payment" if difference > 0 else "refund"
        order["payment_history"].append(_entry(kind, abs(difference), payment_method_id))
        self._move(order["user_id"], payment_method_id, -difference)
        for item, new in pairs:
            item |= {"item_id": new["item_id"], "price": new["price"], "options": new["options"]}
        order["status"] = "pending (item modified)"

    def modify_payment(self, order_id: str, payment_method_id: str) -> None:
        order = self._order(order_id, "pending", "Error: non-pending order cannot be modified")
        history = order["payment_history"]
        if len(history) > 1 or history[0]["transaction_type"] != "payment":
            raise RefusedError("Error: there should be exactly one payment for a pending order")
        old, amount = history[0]["payment_method_id"], history[0]["amount"]
        if old == payment_method_id:
            raise RefusedError("Error: the new payment method should be different from the current one")
        self._must_cover(order, payment_method_id, amount, "to pay for the order")
        history.extend([_entry("payment", amount, payment_method_id), _entry("refund", amount, old)])
        self._move(order["user_id"], payment_method_id, -amount)
        self._move(order["user_id"], old, amount)

    def modify_order_address(self, order_id: str, **address: str) -> None:
        order = self._order(order_id, "pending", "Error: non-pending order cannot be modified")
        order["address"] = address

    def modify_user_address(self, user_id: str, **address: str) -> None:
        self.users.get(user_id)["address"] = address

    def give_back(self, order_id: str, item_ids: list[str], payment_method_id: str) -> None:
        order = self._order(order_id, "delivered", "Error: non-delivered order cannot be returned")
        if payment_method_id not in self.users.get(order["user_id"])["payment_methods"]:
            raise RefusedError("Error: payment method not found")
        original = order["payment_history"][0]["payment_method_id"]
        if "gift_card" not in payment_method_id and payment_method_id != original:
            raise RefusedError("Error: payment method should be either the original payment method or a gift card")
        _check_items(order, item_ids)
        order["status"] = "return requested"
        order |= {"return_items": sorted(item_ids), "return_payment_method_id": payment_method_id}

    def exchange(self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str) -> None:
        order = self._order(order_id, "delivered", "Error: non-delivered order cannot be exchanged")
        pairs = self._pairs(order, item_ids, new_item_ids)
        difference = round(sum(new["price"] - item["price"] for item, new in pairs), 2)
        self._must_cover(order, payment_method_id, difference, "to pay for the price difference")
        order["status"] = "exchange requested"
        order |= {
            "exchange_items": sorted(item_ids),
            "exchange_new_items": sorted(new_item_ids),
            "exchange_payment_method_id": payment_method_id,
            "exchange_price_difference": difference,
        }

    # ── what they share ──────────────────────────────────────────────────────────────────────
    def _order(self, order_id: str, status: str, otherwise: str) -> Record:
        order = self.orders.get(order_id)
        if order["status"] != status:
            raise RefusedError(otherwise)
        return order

    def _pairs(self, order: Record, item_ids: list[str], new_item_ids: list[str]) -> list[tuple[Record, Record]]:
        """Each item with the variant that is to take its place."""
        _check_items(order, item_ids)
        if len(item_ids) != len(new_item_ids):
            raise RefusedError("Error: the number of items to be exchanged should match")
        pairs = list[tuple[Record, Record]]()
        for item_id, new_id in zip(item_ids, new_item_ids, strict=True):
            item = next(item for item in order["items"] if item["item_id"] == item_id)
            new = self.products[item["product_id"]]["variants"].get(new_id)
            if new is None or not new["available"]:
                raise RefusedError(f"Error: new item {new_id} not found or available")
            pairs.append((item, new))
        return pairs

    def _must_cover(self, order: Record, method: str, amount: float, what: str) -> None:
        methods = self.users.get(order["user_id"])["payment_methods"]
        if method not in methods:
            raise RefusedError("Error: payment method not found")
        if methods[method]["source"] == "gift_card" and methods[method]["balance"] < amount:
            raise RefusedError(f"Error: insufficient gift card balance {what}")

    def _move(self, user_id: str, method: str, amount: float) -> None:
        """Money onto a gift card, or off it; other methods settle elsewhere."""
        payment_method = self.users.get(user_id)["payment_methods"][method]
        if payment_method["source"] == "gift_card":
            payment_method["balance"] = round(payment_method["balance"] + amount, 2)


def _entry(kind: str, amount: float, method: str) -> Record:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method}


def _check_items(order: Record, item_ids: list[str]) -> None:
    there = [item["item_id"] for item in order["items"]]
    if any(item_ids.count(item) > there.count(item) for item in item_ids):
        raise RefusedError("Error: some item not found")


def _compare(start: Any, now: Any, path: tuple[str, ...], found: dict[tuple[str, ...], Any]) -> None:
    if isinstance(start, dict) and isinstance(now, dict):
        before, after = cast(Record, start), cast(Record, now)
        for key in {**before, **after}:
            _compare(before.get(key), after.get(key), (*path, key), found)
    elif start != now:
        found[path] = now


READS: dict[str, Callable[..., Any]] = {
    "find_user_id_by_email": Shop.user_by_email,
    "find_user_id_by_name_zip": Shop.user_by_name,
    "get_user_details": Shop.user,
    "get_order_details": Shop.order,
    "get_product_details": Shop.product,
    "list_all_product_types": Shop.product_types,
    "calculate": Shop.calculate,
    "transfer_to_human_agents": Shop.transfer,
}
WRITES: dict[str, Callable[..., None]] = {
    "cancel_pending_order": Shop.cancel,
    "modify_pending_order_items": Shop.modify_items,
    "modify_pending_order_payment": Shop.modify_payment,
    "modify_pending_order_address": Shop.modify_order_address,
    "modify_user_address": Shop.modify_user_address,
    "return_delivered_order_items": Shop.give_back,
    "exchange_delivered_order_items": Shop.exchange,
}
