// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

package pvesim

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kind is the JSON schema type of a parameter.
type kind string

const (
	kindString  kind = "string"
	kindInteger kind = "integer"
	kindNumber  kind = "number"
	kindBoolean kind = "boolean"
	kindArray   kind = "array"
)

// param is one row of the parameter table of an endpoint.
type param struct {
	name     string
	kind     kind
	required bool
	enum     []string
	pattern  *regexp.Regexp
	// min and max bound an integer's value or a string's length; zero is none.
	min, max int
	// requires names the parameter without which this one is refused.
	requires string
	// format checks a string and answers what is wrong with it, or "".
	format func(string) string
	// last is the highest index of a family (net0 ... net31); the name is then
	// the prefix.
	last   int
	family bool
}

func str(name string) param            { return param{name: name, kind: kindString} }
func integer(name string) param        { return param{name: name, kind: kindInteger} }
func boolean(name string) param        { return param{name: name, kind: kindBoolean} }
func (p param) need() param            { p.required = true; return p }
func (p param) between(a, b int) param { p.min, p.max = a, b; return p }
func (p param) oneOf(v ...string) param {
	p.enum = v
	return p
}
func (p param) matching(re string) param {
	p.pattern = regexp.MustCompile(re)
	return p
}
func (p param) formatted(f func(string) string) param { p.format = f; return p }
func (p param) with(other string) param               { p.requires = other; return p }
func (p param) upTo(last int) param                   { p.family, p.last = true, last; return p }

// schema is the parameter table of an endpoint.
type schema []param

// find answers the row for a parameter's name.
func (s schema) find(name string) (param, bool) {
	for _, p := range s {
		if !p.family {
			if p.name == name {
				return p, true
			}
			continue
		}
		digits, ok := strings.CutPrefix(name, p.name)
		if !ok || digits == "" || (len(digits) > 1 && digits[0] == '0') {
			continue
		}
		if n, err := strconv.Atoi(digits); err == nil && n >= 0 && n <= p.last {
			return p, true
		}
	}
	return param{}, false
}

// values are the parameters of a call as they came: strings, or lists of strings
// for arrays.
type values map[string][]string

// check validates in and brings booleans to "0" and "1". It collects every
// parameter's first mistake, as Proxmox VE does.
func (s schema) check(in values) error {
	errs := map[string]string{}
	for name, vs := range in {
		p, ok := s.find(name)
		if !ok {
			errs[name] = "property is not defined in schema and the schema does not allow additional properties"
			continue
		}
		if text := p.check(name, vs); text != "" {
			errs[name] = text
			continue
		}
		if p.kind == kindBoolean {
			b, _ := parseBool(vs[0])
			in[name] = []string{b}
		}
		if p.requires != "" && in[p.requires] == nil {
			errs[p.requires] = fmt.Sprintf("missing property required by '%s'", name)
		}
	}
	for _, p := range s {
		if p.required && in[p.name] == nil {
			errs[p.name] = "property is missing and it is not optional"
		}
	}
	if len(errs) > 0 {
		return &refusal{status: http.StatusBadRequest, message: verificationFailed, params: errs}
	}
	return nil
}

var (
	isInteger = regexp.MustCompile(`^[+-]?\d+$`)
	isNumber  = regexp.MustCompile(`^[+-]?\d+(\.\d+)?$`)
)

// check answers what is wrong with the values of this parameter, or "".
func (p param) check(name string, vs []string) string {
	if p.kind == kindArray {
		return ""
	}
	v := vs[0]
	switch p.kind {
	case kindInteger, kindNumber:
		if p.kind == kindInteger && !isInteger.MatchString(v) || !isNumber.MatchString(v) {
			return fmt.Sprintf("type check ('%s') failed - got '%s'", p.kind, v)
		}
		n, _ := strconv.ParseFloat(v, 64)
		if p.min != 0 && n < float64(p.min) {
			return fmt.Sprintf("value must have a minimum value of %d", p.min)
		}
		if p.max != 0 && n > float64(p.max) {
			return fmt.Sprintf("value must have a maximum value of %d", p.max)
		}
	case kindBoolean:
		if _, ok := parseBool(v); !ok {
			return fmt.Sprintf("type check ('boolean') failed - got '%s'", v)
		}
	default:
		if p.max != 0 && len(v) > p.max {
			return fmt.Sprintf("value may only be %d characters long", p.max)
		}
		if p.min != 0 && len(v) < p.min {
			return fmt.Sprintf("value must be at least %d characters long", p.min)
		}
	}
	if p.format != nil {
		if text := p.format(v); text != "" {
			// Property strings repeat the parameter's name in their own errors.
			return "invalid format - " + strings.ReplaceAll(text, "%name", name) + "\n"
		}
	}
	if p.pattern != nil && !p.pattern.MatchString(v) {
		return "value does not match the regex pattern"
	}
	if p.enum != nil && !slices.Contains(p.enum, v) {
		return fmt.Sprintf("value '%s' does not have a value in the enumeration '%s'", v, strings.Join(p.enum, ", "))
	}
	return ""
}

// parseBool reads Proxmox VE's notations of a boolean.
func parseBool(v string) (string, bool) {
	switch strings.ToLower(v) {
	case "1", "on", "yes", "true":
		return "1", true
	case "0", "off", "no", "false":
		return "0", true
	}
	return "", false
}

// splitList splits Proxmox VE's lists, whose separators are comma, semicolon,
// white space and NUL.
func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool {
		return r == ',' || r == ';' || r == ' ' || r == '\t' || r == '\n' || r == 0
	})
}

var (
	reNodeName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?$`)
	reDNSName  = regexp.MustCompile(`^([a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*$`)
	reStorage  = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9\-_.]*[a-zA-Z0-9]$`)
	reUser     = regexp.MustCompile(`^[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+$`)
	reToken    = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9.\-_]+$`)
	reRole     = regexp.MustCompile(`^[A-Za-z0-9.\-_]+$`)
	reTag      = regexp.MustCompile(`^[a-z0-9_][a-z0-9_\-+.]*$`)
)

func looksLike(re *regexp.Regexp, what string) func(string) string {
	return func(v string) string {
		if re.MatchString(v) {
			return ""
		}
		return what
	}
}

func nodeParam(name string) param {
	return str(name).formatted(looksLike(reNodeName, "value does not look like a valid node name"))
}

func storageParam(name string) param {
	return str(name).formatted(func(v string) string {
		if reStorage.MatchString(v) {
			return ""
		}
		return fmt.Sprintf("storage ID '%s' contains illegal characters", v)
	})
}

func vmidParam(name string) param {
	return integer(name).formatted(func(v string) string {
		if n, err := strconv.Atoi(v); err == nil && n >= 100 && n <= 999999999 {
			return ""
		}
		return "value does not look like a valid VM ID"
	})
}

func userParam(name string) param {
	return str(name).between(0, 64).formatted(func(v string) string {
		if reUser.MatchString(v) {
			return ""
		}
		return fmt.Sprintf("value '%s' does not look like a valid user name", v)
	})
}

func poolParam(name string) param {
	re := regexp.MustCompile(`^[A-Za-z0-9.\-_]+(/[A-Za-z0-9.\-_]+){0,2}$`)
	return str(name).formatted(func(v string) string {
		if re.MatchString(v) {
			return ""
		}
		return fmt.Sprintf("value '%s' does not look like a valid pool name", v)
	})
}

func dnsNameParam(name string) param {
	return str(name).formatted(looksLike(reDNSName, "value does not look like a valid DNS name"))
}
