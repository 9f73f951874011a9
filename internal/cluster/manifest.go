// Copyright (c) The terraform-provider-capi Authors
// SPDX-License-Identifier: MPL-2.0

// Package cluster turns a manifest of Cluster API objects into a running
// cluster: it parses and checks the text, applies it to the cluster that is to
// manage it, waits, fetches the credentials, and finds the objects again
// wherever a pivot has taken them.
package cluster

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Object is one document of a manifest with the place where it was written.
type Object struct {
	*unstructured.Unstructured
	// Document counts the documents of the text from 1; Line is the line of the
	// text on which the document starts, from 1.
	Document, Line int
}

// Ref names the object as people do: kind namespace/name.
func (o Object) Ref() string { return refOf(o.Unstructured) }

func refOf(u *unstructured.Unstructured) string {
	if u.GetNamespace() == "" {
		return u.GetKind() + " " + u.GetName()
	}
	return u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
}

// Manifest is a parsed text of Kubernetes objects.
type Manifest struct {
	Objects []Object
}

// Problem is something wrong in a manifest's text.
type Problem struct {
	// Document and Line say where, both from 1; 0 means the text as a whole.
	Document, Line int
	// Object names the object concerned, if it got that far.
	Object string
	// Message says what is wrong and what would be right.
	Message string
}

func (p Problem) Error() string {
	var where []string
	if p.Document > 0 {
		where = append(where, fmt.Sprintf("document %d", p.Document))
	}
	if p.Line > 0 {
		where = append(where, fmt.Sprintf("line %d", p.Line))
	}
	if p.Object != "" {
		where = append(where, p.Object)
	}
	if len(where) == 0 {
		return p.Message
	}
	return strings.Join(where, ", ") + ": " + p.Message
}

// placeholder matches ${NAME}, and $${NAME}, which stands for itself.
var placeholder = regexp.MustCompile(`\$?\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// Placeholders answers the names of the ${NAME} placeholders in text, sorted and
// each once. $${NAME} is an escape and no placeholder, and comment lines have none.
func Placeholders(text string) []string {
	var names []string
	for line := range strings.SplitSeq(text, "\n") {
		if isComment(line) {
			continue
		}
		for _, m := range placeholder.FindAllStringSubmatch(line, -1) {
			if !strings.HasPrefix(m[0], "$$") {
				names = append(names, m[1])
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Fill replaces each ${NAME} of text by values[NAME] and $${NAME} by ${NAME}. A
// placeholder without a value is an error that names all such, and so is a value
// that no placeholder asks for, since it is a misspelling in nearly every case.
func Fill(text string, values map[string]string) (string, error) {
	var problems []error
	names := Placeholders(text)
	for _, name := range names {
		if _, ok := values[name]; !ok {
			problems = append(problems, fmt.Errorf("the placeholder ${%s} has no value in substitutions", name))
		}
	}
	for name := range values {
		if !slices.Contains(names, name) {
			problems = append(problems, fmt.Errorf("the substitution %s is used nowhere in the manifest", name))
		}
	}
	if len(problems) > 0 {
		slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return "", errors.Join(problems...)
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if isComment(line) {
			continue
		}
		lines[i] = placeholder.ReplaceAllStringFunc(line, func(m string) string {
			if strings.HasPrefix(m, "$$") {
				return m[1:]
			}
			return values[m[2:len(m)-1]]
		})
	}
	return strings.Join(lines, "\n"), nil
}

// isComment says whether a line holds a comment alone. Comments speak of
// placeholders, and nobody reads their values.
func isComment(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "#") }

// UnknownStandIn is put in the place of a substitution that is not known yet. A
// number that is also a string lets the text parse wherever the value is to
// stand; checks skip values that contain it.
const UnknownStandIn = "900000001"

// documentStart matches the line that separates two YAML documents.
var documentStart = regexp.MustCompile(`^---(\s|$)`)

// Parse reads a manifest's text, in which all placeholders are filled. All
// problems are answered together, each as a [Problem].
func Parse(text string) (*Manifest, error) {
	m := &Manifest{}
	var problems []error
	lines := strings.Split(text, "\n")
	start := 0
	number := 0
	flush := func(end int) {
		body := strings.Join(lines[start:end], "\n")
		if isBlank(body) {
			return
		}
		number++
		object, err := parseDocument(body, number, start+1)
		if err != nil {
			problems = append(problems, err)
			return
		}
		m.Objects = append(m.Objects, object)
	}
	for i, line := range lines {
		if documentStart.MatchString(line) {
			flush(i)
			start = i + 1
		}
	}
	flush(len(lines))
	problems = append(problems, m.duplicates()...)
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return m, nil
}

// isBlank says whether a document has nothing but comments and white space.
func isBlank(body string) bool {
	for line := range strings.SplitSeq(body, "\n") {
		if strings.TrimSpace(line) != "" && !isComment(line) {
			return false
		}
	}
	return true
}

func parseDocument(body string, number, line int) (Object, error) {
	problem := Problem{Document: number, Line: line}
	content := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(body), &content); err != nil {
		problem.Line, problem.Message = yamlProblem(err, line)
		return Object{}, problem
	}
	for _, field := range []string{"apiVersion", "kind"} {
		if text, _ := content[field].(string); text == "" {
			problem.Message = field + " is missing"
			return Object{}, problem
		}
	}
	u := &unstructured.Unstructured{}
	// The JSON round trip gives the numeric types that unstructured content must
	// have; yaml answers float64 for every number.
	raw, err := yaml.YAMLToJSON([]byte(body))
	if err == nil {
		err = u.UnmarshalJSON(raw)
	}
	if err != nil {
		problem.Message = "this is not a Kubernetes object: " + err.Error()
		return Object{}, problem
	}
	switch {
	case u.IsList():
		problem.Message = "a List is not taken: write its items as documents of their own"
	case u.GetName() == "":
		problem.Message = u.GetKind() + " has no metadata.name"
	default:
		return Object{Unstructured: u, Document: number, Line: line}, nil
	}
	return Object{}, problem
}

// yamlLine finds the line that a YAML error speaks of.
var yamlLine = regexp.MustCompile(`line (\d+): `)

// yamlProblem turns a YAML error, which counts lines from the start of its
// document, into the line of the whole text and a message without that count.
func yamlProblem(err error, start int) (int, string) {
	message := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	message = strings.TrimPrefix(message, "yaml: ")
	match := yamlLine.FindStringSubmatchIndex(message)
	if match == nil {
		return start, message
	}
	var line int
	if _, scanErr := fmt.Sscanf(message[match[2]:match[3]], "%d", &line); scanErr != nil {
		return start, message
	}
	return start + line - 1, message[:match[0]] + message[match[1]:]
}

func (m *Manifest) duplicates() []error {
	seen := map[string]int{}
	var problems []error
	for _, o := range m.Objects {
		key := o.GroupVersionKind().GroupKind().String() + " " + o.GetNamespace() + "/" + o.GetName()
		if first, ok := seen[key]; ok {
			problems = append(problems, Problem{Document: o.Document, Line: o.Line, Object: o.Ref(), Message: fmt.Sprintf("the same object is already in document %d", first)})
			continue
		}
		seen[key] = o.Document
	}
	return problems
}
